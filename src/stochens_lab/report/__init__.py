"""What people read: tables and figures."""
