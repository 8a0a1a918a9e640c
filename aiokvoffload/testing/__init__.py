"""For plug-in authors and our own tests: a device and a clock that the test moves, fakes, contract test classes."""
