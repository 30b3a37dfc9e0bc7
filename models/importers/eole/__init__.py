"""Models of eole, the successor of OpenNMT-py."""
