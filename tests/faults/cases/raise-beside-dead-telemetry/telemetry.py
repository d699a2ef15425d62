import socket
import threading


class Telemetry:
    def __init__(self, address):
        self.address = address
        self.thread = threading.Thread(target=self.report, name="telemetry", daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        return None

    def report(self):
        with socket.create_connection(self.address, timeout=1) as connection:
            connection.sendall(b"up")
