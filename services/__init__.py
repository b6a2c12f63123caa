"""The services of Headrace, one folder each. A service never imports another: they meet on the bus only."""
