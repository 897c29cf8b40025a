"""ActorQ: a full-precision learner, quantized actor processes, and a publisher between them."""
