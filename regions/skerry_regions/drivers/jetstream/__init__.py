"""What machines share through JetStream: a connection, streams of messages by key, a follower."""
