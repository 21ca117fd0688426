//! Consumer groups.

pub struct Groups;
