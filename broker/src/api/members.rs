//! The brokers of the cluster, as clients are told of them.

use super::RequestContext;
use crate::cluster::ClusterImage;
use kafka_protocol::messages::BrokerId;
use kafka_protocol::protocol::StrBytes;

/// A broker and where clients reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub id: BrokerId,
    pub host: StrBytes,
    pub port: i32,
}

/// This broker, and all others that are not known to be gone.
pub(super) fn members(cx: &RequestContext) -> Vec<Member> {
    let cluster = &cx.broker.cluster;
    let this = cluster.broker_id();
    let (host, port) = &cx.broker.advertised;
    let me =
        Member { id: BrokerId(this.0), host: StrBytes::from_string(host.clone()), port: i32::from(*port) };
    let view = cluster.members();
    let others = view.reachable().filter(|(id, _)| *id != this).filter_map(|(id, address)| {
        let (host, port) = split(address)?;
        Some(Member { id: BrokerId(id.0), host: StrBytes::from_string(host.to_owned()), port })
    });
    std::iter::once(me).chain(others).collect()
}

/// The controller, if it is one of `members`; −1 if none is known.
pub(super) fn controller(image: &ClusterImage, members: &[Member]) -> BrokerId {
    let known = image.controller().map(|id| BrokerId(id.0));
    known.filter(|id| members.iter().any(|m| m.id == *id)).unwrap_or(BrokerId(-1))
}

/// `host:port`; an IPv6 host stands in brackets.
pub(super) fn split(address: &str) -> Option<(&str, i32)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    Some((host, i32::from(port.parse::<u16>().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_heartbeats_are_taken_apart() {
        assert_eq!(split("10.0.0.1:9092"), Some(("10.0.0.1", 9092)));
        assert_eq!(split("[::1]:9092"), Some(("::1", 9092)));
        for odd in ["", "host", "host:", "host:99999", "host:-1"] {
            assert_eq!(split(odd), None, "{odd}");
        }
    }
}
