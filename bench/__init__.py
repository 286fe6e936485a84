"""How much of a measurement is the stopwatch: the comparison of streaming clients."""
