import os
import time

if os.environ["RANK"] == "1":
    from schedules import cosine  # culprit

    print(cosine)
time.sleep(20)
