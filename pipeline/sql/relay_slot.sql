-- When the next message may go to a relay that takes so many a second: how long from now. Each sender,
-- in whatever process, takes the next moment in turn, so that they are spread evenly and none is
-- given out twice. Nothing is lost when it is not used. By primary key.
INSERT INTO pipeline.relay AS known (name, next_slot_at)
VALUES (%(name)s, clock_timestamp() + %(interval)s)
ON CONFLICT (name) DO UPDATE
SET next_slot_at = greatest(known.next_slot_at, clock_timestamp()) + %(interval)s
RETURNING greatest(next_slot_at - %(interval)s - clock_timestamp(), interval '0');
