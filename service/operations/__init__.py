"""What each RPC does, as plain functions from request bytes to reply bytes; no gRPC calls, one file an RPC group."""
