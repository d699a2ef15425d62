import socket

import torch
import torch.distributed as dist


def serve():
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen()
    return server


def fetch(port, name):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(name.encode())
        return connection.recv(4096)  # culprit


def main():
    dist.init_process_group("gloo")
    data = torch.zeros(1)
    if dist.get_rank() == 2:
        server = serve()  # accepts, and never answers
        fetch(server.getsockname()[1], "shard-2")
    dist.all_reduce(data)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
