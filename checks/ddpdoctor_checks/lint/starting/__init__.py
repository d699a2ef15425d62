"""How ranks are started and set up: options, ports, devices, launch files."""
