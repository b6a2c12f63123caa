"""The host: runs replicas on this machine as the operator tells it, and says in heartbeats what runs."""
