-- A worker or scheduler ends in good order. By primary key.
DELETE FROM pipeline.process WHERE kind = %(kind)s AND name = %(name)s;
