//! The heartbeat record: what a broker writes, once a beat, to prove that it lives.
//!
//! Fixed size, one disk sector, little-endian, a CRC32C over everything before it at the end. It is
//! rewritten in place, because a renamed name may stay cached for longer than a lease; a reader may
//! therefore see half of two records, which the checksum tells.
//!
//! ```text
//!   0  magic "HWHB"         24  sequence u64           44  flags u16 (bit 0: relinquished, 1: leaving, 2: stuck)
//!   4  version u16          32  lease ms u32           46  address length u16
//!   6  (zero) u16           36  resigned epoch u32     48  domain length u16
//!   8  incarnation 16       40  broker id i32          50  lease number u32
//!  54  controller epoch u32 (0: not controller)         58  change u64 of the metadata that is durable
//!  66  requests u32: how many were made of the controller under this lease
//!  70  controller epoch u32                            74  change u64 of the metadata that the writer shows
//!  82  address, then domain, then zeros                508  CRC32C of bytes 0..508
//! ```

use crate::types::{BrokerId, Epoch};
use bytes::Bytes;
use std::time::Duration;

pub(crate) const SIZE: usize = 512;
const BODY: usize = 82;
const CRC_AT: usize = SIZE - 4;
const MAGIC: &[u8; 4] = b"HWHB";
const VERSION: u16 = 2;
const RELINQUISHED: u16 = 1;
const LEAVING: u16 = 2;
const STUCK: u16 = 4;
const MAX_ADDRESS: usize = 200;

#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Default))]
pub(crate) struct Heartbeat {
    pub broker: BrokerId,
    /// The process: another one for each start.
    pub incarnation: uuid::Uuid,
    pub lease_number: u32,
    /// Rises by one with each write under this lease.
    pub sequence: u64,
    /// How long the lease lasts from a write on, by this broker's configuration.
    pub lease: Duration,
    /// Where clients reach the broker; for people and for hints.
    pub address: String,
    /// [`crate::rt::HostLock::domain`]; empty proves nothing.
    pub domain: String,
    /// The last controller epoch that the writer resigned from, alive, under this lease; 0 if none. Its claim holds nobody
    /// up any more.
    pub resigned: Epoch,
    /// If the writer is controller: its epoch, and the last change of the metadata that it made durable.
    pub office: Option<(Epoch, u64)>,
    /// The last change of the metadata that the writer shows, with the epoch of the controller that made it.
    pub shown: (Epoch, u64),
    /// How many requests the writer made of the controller under this lease ([`super::requests`]).
    pub requests: u32,
    /// The writer's right ended before it wrote this, and it serves nothing under this lease any more.
    pub relinquished: bool,
    /// The writer is about to stop: what it leads is to go to others.
    pub leaving: bool,
    /// A call of the writer's has hung on the volume for longer than the watchdog allows: what can be led elsewhere is.
    pub stuck: bool,
}

impl Heartbeat {
    pub fn encode(&self) -> Bytes {
        let address = self.address.as_bytes().get(..MAX_ADDRESS).unwrap_or(self.address.as_bytes());
        let room = CRC_AT - BODY - address.len();
        // A domain that does not fit would compare wrongly when cut: better none.
        let domain = if self.domain.len() <= room { self.domain.as_bytes() } else { &[] };
        let mut b = Vec::with_capacity(SIZE);
        b.extend_from_slice(MAGIC);
        b.extend_from_slice(&VERSION.to_le_bytes());
        b.extend_from_slice(&[0, 0]);
        b.extend_from_slice(self.incarnation.as_bytes());
        b.extend_from_slice(&self.sequence.to_le_bytes());
        b.extend_from_slice(&u32::try_from(self.lease.as_millis()).unwrap_or(u32::MAX).to_le_bytes());
        b.extend_from_slice(&self.resigned.0.to_le_bytes());
        b.extend_from_slice(&self.broker.0.to_le_bytes());
        let flag = |set: bool, bit: u16| if set { bit } else { 0 };
        let flags =
            flag(self.relinquished, RELINQUISHED) | flag(self.leaving, LEAVING) | flag(self.stuck, STUCK);
        b.extend_from_slice(&flags.to_le_bytes());
        b.extend_from_slice(&(address.len() as u16).to_le_bytes());
        b.extend_from_slice(&(domain.len() as u16).to_le_bytes());
        b.extend_from_slice(&self.lease_number.to_le_bytes());
        let (epoch, change) = self.office.unwrap_or_default();
        b.extend_from_slice(&epoch.0.to_le_bytes());
        b.extend_from_slice(&change.to_le_bytes());
        b.extend_from_slice(&self.requests.to_le_bytes());
        b.extend_from_slice(&self.shown.0 .0.to_le_bytes());
        b.extend_from_slice(&self.shown.1.to_le_bytes());
        b.extend_from_slice(address);
        b.extend_from_slice(domain);
        b.resize(CRC_AT, 0);
        b.extend_from_slice(&crc32c::crc32c(&b).to_le_bytes());
        b.into()
    }

    /// `None`: not a whole heartbeat of a version that this broker knows.
    pub fn decode(b: &[u8]) -> Option<Heartbeat> {
        let b: &[u8; SIZE] = b.try_into().ok()?;
        let crc = u32::from_le_bytes(field(b, CRC_AT)?);
        if crc32c::crc32c(b.get(..CRC_AT)?) != crc || &field::<4>(b, 0)? != MAGIC {
            return None;
        }
        if u16::from_le_bytes(field(b, 4)?) != VERSION {
            return None;
        }
        let address_end = BODY + usize::from(u16::from_le_bytes(field(b, 46)?));
        let domain_end = address_end + usize::from(u16::from_le_bytes(field(b, 48)?));
        let office = (Epoch(u32::from_le_bytes(field(b, 54)?)), u64::from_le_bytes(field(b, 58)?));
        let text = |from, to| b.get(from..to).map(|t| String::from_utf8_lossy(t).into_owned());
        Some(Heartbeat {
            incarnation: uuid::Uuid::from_bytes(field(b, 8)?),
            sequence: u64::from_le_bytes(field(b, 24)?),
            lease: Duration::from_millis(u32::from_le_bytes(field(b, 32)?).into()),
            resigned: Epoch(u32::from_le_bytes(field(b, 36)?)),
            broker: BrokerId(i32::from_le_bytes(field(b, 40)?)),
            relinquished: u16::from_le_bytes(field(b, 44)?) & RELINQUISHED != 0,
            leaving: u16::from_le_bytes(field(b, 44)?) & LEAVING != 0,
            stuck: u16::from_le_bytes(field(b, 44)?) & STUCK != 0,
            lease_number: u32::from_le_bytes(field(b, 50)?),
            office: Some(office).filter(|(epoch, _)| epoch.0 > 0),
            requests: u32::from_le_bytes(field(b, 66)?),
            shown: (Epoch(u32::from_le_bytes(field(b, 70)?)), u64::from_le_bytes(field(b, 74)?)),
            address: text(BODY, address_end)?,
            domain: text(address_end, domain_end)?,
        })
    }
}

fn field<const N: usize>(b: &[u8], at: usize) -> Option<[u8; N]> {
    b.get(at..at + N)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_heartbeat() -> impl Strategy<Value = Heartbeat> {
        (any::<(i32, u128, u32, u64, u32, u32, bool)>(), "[a-z0-9:.]{0,200}", "[a-f0-9/-]{0,200}").prop_map(
            |((broker, inc, lease_number, sequence, lease, load, relinquished), address, domain)| Heartbeat {
                office: (load % 3 > 0).then_some((Epoch(load), sequence / 3)),
                requests: load / 5,
                shown: (Epoch(load / 7), sequence / 11),
                broker: BrokerId(broker),
                incarnation: uuid::Uuid::from_u128(inc),
                lease_number,
                sequence,
                lease: Duration::from_millis(lease.into()),
                address,
                domain,
                resigned: Epoch(load),
                relinquished,
                leaving: load % 2 == 1,
                stuck: load % 3 == 1,
            },
        )
    }

    proptest! {
        #[test]
        fn a_heartbeat_is_read_back_as_written(h in any_heartbeat()) {
            let b = h.encode();
            prop_assert_eq!(b.len(), SIZE);
            prop_assert_eq!(Heartbeat::decode(&b), Some(h));
        }

        #[test]
        fn half_of_one_record_and_half_of_another_is_no_heartbeat(
            a in any_heartbeat(), b in any_heartbeat(), cut in 1..SIZE
        ) {
            let mut mix = a.encode()[..cut].to_vec();
            mix.extend_from_slice(&b.encode()[cut..]);
            let read = Heartbeat::decode(&mix);
            prop_assert!(read.is_none() || read == Some(a) || read == Some(b));
        }

        #[test]
        fn garbage_is_no_heartbeat(b in proptest::collection::vec(any::<u8>(), 0..600)) {
            prop_assert_eq!(Heartbeat::decode(&b), None);
        }
    }

    #[test]
    fn a_domain_too_long_to_store_proves_nothing() {
        let long = Heartbeat {
            office: None,
            requests: 0,
            shown: (Epoch(0), 0),
            broker: BrokerId(1),
            incarnation: uuid::Uuid::nil(),
            lease_number: 1,
            sequence: 1,
            lease: Duration::from_secs(10),
            address: "h:1".into(),
            domain: "d".repeat(600),
            resigned: Epoch(0),
            relinquished: false,
            leaving: false,
            stuck: false,
        };
        assert_eq!(Heartbeat::decode(&long.encode()).map(|h| h.domain), Some(String::new()));
    }
}
