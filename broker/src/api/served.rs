//! Which versions of an API are listed, decoded and served.

use kafka_protocol::messages::ApiKey;

/// One row of the version table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    pub key: ApiKey,
    /// The lowest version that ApiVersions lists.
    pub listed_min: i16,
    /// The lowest version that is truly served. Lower than this but listed is Produce 0–2 only: older
    /// librdkafka gives up compression unless Produce 0 is listed, and never sends it.
    pub min: i16,
    pub max: i16,
}

impl Served {
    pub fn has(&self, version: i16) -> bool {
        (self.min..=self.max).contains(&version)
    }
}
