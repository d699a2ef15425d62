import socket


class FeatureStore:
    def __init__(self, host, port):
        self.address = (host, port)

    def __enter__(self):
        self.socket = socket.create_connection(self.address, timeout=5)  # culprit
        return self

    def __exit__(self, *_):
        self.socket.close()

    def read(self, index):
        self.socket.sendall(b"%d\n" % index)
        return float(self.socket.recv(64))
