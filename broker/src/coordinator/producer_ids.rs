//! Producer ids, from blocks that are durable before any id of them is given out.

pub struct ProducerIds;
