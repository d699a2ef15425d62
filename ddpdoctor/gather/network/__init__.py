"""What the network of one node is: interfaces, names, ports, connections."""
