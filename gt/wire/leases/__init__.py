"""Sessions over TCP that outlive a connection: the client's side and the server's. Nothing else belongs here."""
