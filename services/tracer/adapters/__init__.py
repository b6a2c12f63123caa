"""What touches the outside: collectors over HTTP and gRPC, the file of policies, the answers of collectors."""
