"""The live workload: orders in plain Python, whose garbage collector has real work. A process of its own."""
