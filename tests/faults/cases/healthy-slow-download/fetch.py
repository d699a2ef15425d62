import http.server
import threading
import time
import urllib.request

import torch
import torch.distributed as dist


class Slow(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(8)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"weights")

    def log_message(self, *_):
        pass


def download():
    server = http.server.HTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/model") as answer:
        data = answer.read()
    server.shutdown()
    return data


def main():
    dist.init_process_group("gloo")
    length = torch.tensor([len(download()) if dist.get_rank() == 0 else 0])
    dist.broadcast(length, src=0)
    dist.barrier()
    if dist.get_rank() == 3:
        print("got", length.item())
    dist.destroy_process_group()


main()
