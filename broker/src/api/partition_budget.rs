//! How many partitions may yet be made: `max.partitions.per.request` and `max.partitions`.
//!
//! Every partition costs memory, a directory and, under load, an open file; without a bound one request of a
//! few bytes could ask for two thousand million of them. Kafka has the first bound too (10,000, fixed), and answers
//! POLICY_VIOLATION (44) as this does.
//!
//! What the cluster has is counted when a request begins: requests that come at the same time may together exceed
//! `max.partitions`, each by what one request may make.

use super::refusal::Refusal;
use crate::cluster::ClusterImage;
use crate::config::BrokerConfig;
use kafka_protocol::ResponseError;

#[derive(Clone, Debug)]
pub(super) struct PartitionBudget {
    per_request: i64,
    request_left: i64,
    in_cluster: i64,
    cluster_left: i64,
}

impl PartitionBudget {
    pub fn new(config: &BrokerConfig, image: &ClusterImage) -> Self {
        let present: i64 = image.topics.values().map(|t| i64::from(t.partitions)).sum();
        Self::of(i64::from(config.max_partitions_per_request), i64::from(config.max_partitions), present)
    }

    fn of(per_request: i64, in_cluster: i64, present: i64) -> Self {
        PartitionBudget {
            per_request,
            request_left: per_request,
            in_cluster,
            cluster_left: in_cluster - present,
        }
    }

    /// Takes `n` partitions, or none and says why.
    pub fn take(&mut self, n: i32) -> Result<(), Refusal> {
        let n = i64::from(n);
        let refuse = |message| Err(Refusal::new(ResponseError::PolicyViolation, message));
        if n > self.request_left {
            return refuse(format!(
                "one request may make {} partitions at most (max.partitions.per.request)",
                self.per_request
            ));
        }
        if n > self.cluster_left {
            return refuse(format!(
                "the cluster may have {} partitions at most (max.partitions), {} more are allowed",
                self.in_cluster,
                self.cluster_left.max(0)
            ));
        }
        self.request_left -= n;
        self.cluster_left -= n;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_bounded() {
        let mut budget = PartitionBudget::of(10, 100, 0);
        assert!(budget.take(11).is_err());
        assert!(budget.take(10).is_ok());
        let refusal = budget.take(1).unwrap_err();
        assert_eq!(refusal.code(), 44);
        assert!(refusal.message.contains("max.partitions.per.request"), "{}", refusal.message);
    }

    #[test]
    fn a_cluster_is_bounded() {
        let mut budget = PartitionBudget::of(1000, 100, 98);
        assert!(budget.take(i32::MAX).is_err());
        assert!(budget.take(2).is_ok());
        assert!(budget.take(1).unwrap_err().message.contains("max.partitions)"));
        assert!(PartitionBudget::of(10, 100, 200).take(1).is_err());
    }
}
