"""What a learner needs: the fleet of servers that it samples from. Imports nothing of `service.server`."""
