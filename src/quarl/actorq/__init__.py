"""ActorQ: a full-precision learner, quantised actor processes, and a publisher between them."""
