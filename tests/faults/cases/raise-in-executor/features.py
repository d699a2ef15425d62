import json


def parse(line):
    record = json.loads(line)
    return float(record["value"])  # culprit
