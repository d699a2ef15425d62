print("the right name")
