"""What names, calls and values of a program mean: bindings, kinds of values, ranks, steps in a row."""
