import sys

from engine.registry import build
from engine.trainer import fit

CONFIG = {
    "trainer": {"steps": 2, "backend": "gloo"},
    "callbacks": {"progress": {"every": 1}, "checkpoint": {"every": 2}},
}


def override(tree, words):
    for word in words:
        path, value = word.split("=")
        *parents, last = path.split(".")
        node = tree
        for name in parents:
            node = node.setdefault(name, {})
        node[last] = int(value)
    return tree


def main():
    config = override(CONFIG, sys.argv[1:])
    fit(
        callbacks=[build(name, **values) for name, values in config["callbacks"].items()], **config["trainer"]
    )


if __name__ == "__main__":
    main()
