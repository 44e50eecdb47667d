def demo() -> None:
    """placeholder"""
