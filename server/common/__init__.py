"""The floor of the gateway: errors, fields, deadlines and traces for all rooms. It imports none."""
