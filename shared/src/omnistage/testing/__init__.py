"""For tests of this project and of those who build on it: conformance suites, fakes, real servers."""
