from app.engine import Engine

if __name__ == "__main__":
    with Engine() as engine:
        engine.run()
