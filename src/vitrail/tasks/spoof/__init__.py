"""Face anti-spoofing: live faces against presentation attacks."""
