def encode(text):
    return [ord(word[0]) for word in text.split()]  # culprit
