//! Reaching those who take part in transactions, wherever they are led: here, or by asking another broker.

use super::write_txn_markers::marker_error;
use super::{peers, tags};
use crate::api::members::members_of;
use crate::api::Broker;
use crate::coordinator::slot_of;
use crate::coordinator::transactions::{Marker, Participant, Participants, Producer};
use crate::storage::{self, MarkerError};
use crate::types::{BrokerId, Offset, TopicId};
use async_trait::async_trait;
use kafka_protocol::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use kafka_protocol::messages::write_txn_markers_request::{WritableTxnMarker, WritableTxnMarkerTopic};
use kafka_protocol::messages::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, ApiKey, ProducerId, TopicName, TransactionalId,
    WriteTxnMarkersRequest, WriteTxnMarkersResponse,
};
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::ResponseError;
use std::sync::{Arc, Weak};

/// The versions that brokers speak with one another.
const VERIFY: i16 = 5;
const MARKERS: i16 = 1;

/// A broker's way to all participants.
pub struct BrokerParticipants(Weak<Broker>);

/// Which transaction of whose.
#[derive(Clone, Copy)]
pub struct Claim<'a> {
    pub txn_id: &'a str,
    pub producer: Producer,
    /// The participant joins if it has not.
    pub add: bool,
}

impl BrokerParticipants {
    pub fn new(broker: &Arc<Broker>) -> Self {
        BrokerParticipants(Arc::downgrade(broker))
    }

    fn broker(&self) -> Result<Arc<Broker>, ResponseError> {
        self.0.upgrade().ok_or(ResponseError::CoordinatorNotAvailable)
    }
}

#[async_trait]
impl Participants for BrokerParticipants {
    async fn write_marker(
        &self,
        topic: TopicId,
        partition: i32,
        marker: Marker,
    ) -> Result<(), ResponseError> {
        let broker = self.broker()?;
        let first = write_once(&broker, topic, partition, marker, None).await;
        match first {
            // Its leader does not know which transaction is open there. As long as this is under way it is this one.
            Err(Refusal { first: Some(first), .. }) => {
                write_once(&broker, topic, partition, marker, Some(first)).await.map_err(|r| r.error)
            }
            other => other.map_err(|r| r.error),
        }
    }

    async fn write_group_marker(&self, group: &str, marker: Marker) -> Result<(), ResponseError> {
        let broker = self.broker()?;
        let Some(address) = coordinator(&broker, group)? else {
            return broker.transactions.apply_group_marker(group, marker).await;
        };
        let asked = writable(marker, None)
            .with_unknown_tagged_field(tags::GROUP, bytes::Bytes::copy_from_slice(group.as_bytes()));
        let request = WriteTxnMarkersRequest::default().with_markers(vec![asked]);
        let answer: WriteTxnMarkersResponse =
            peers::call(as_ref(&address), ApiKey::WriteTxnMarkers, MARKERS, &request).await?;
        let result = answer.markers.first().ok_or(ResponseError::NetworkException)?;
        match tags::int(&result.unknown_tagged_fields, tags::ERROR) {
            Some(0) => Ok(()),
            Some(code) => Err(error_of(code)),
            None => Err(ResponseError::NetworkException),
        }
    }

    async fn verify_group(
        &self,
        txn_id: &str,
        producer: Producer,
        group: &str,
        add: bool,
    ) -> Result<u64, ResponseError> {
        let claim = Claim { txn_id, producer, add };
        verify(&*self.broker()?, claim, Participant::Group(group.to_owned())).await
    }
}

/// Asks the transaction's coordinator whether `participant` takes part, and in which transaction of the producer's.
///
/// # Errors
/// As [`crate::coordinator::transactions::Transactions::verify`]; NETWORK_EXCEPTION if it does not answer.
pub async fn verify(
    broker: &Broker,
    claim: Claim<'_>,
    participant: Participant,
) -> Result<u64, ResponseError> {
    let Some(address) = coordinator(broker, claim.txn_id)? else {
        return broker.transactions.verify(claim.txn_id, claim.producer, participant, claim.add).await;
    };
    let mut txn = AddPartitionsToTxnTransaction::default()
        .with_transactional_id(TransactionalId(StrBytes::from_string(claim.txn_id.to_owned())))
        .with_producer_id(ProducerId(claim.producer.id))
        .with_producer_epoch(claim.producer.epoch)
        .with_verify_only(!claim.add)
        .with_unknown_tagged_field(tags::NUMBER, bytes::Bytes::new());
    match participant {
        Participant::Partition(id, index) => {
            let image = broker.cluster.image();
            let topic = image.topic_by_id(id).ok_or(ResponseError::UnknownTopicOrPartition)?;
            let name = TopicName(StrBytes::from_string(topic.name.clone()));
            txn.topics =
                vec![AddPartitionsToTxnTopic::default().with_name(name).with_partitions(vec![index])];
        }
        Participant::Group(group) => {
            txn = txn.with_unknown_tagged_field(tags::GROUP, bytes::Bytes::from(group.into_bytes()));
        }
    }
    let request = AddPartitionsToTxnRequest::default().with_transactions(vec![txn]);
    let answer: AddPartitionsToTxnResponse =
        peers::call(as_ref(&address), ApiKey::AddPartitionsToTxn, VERIFY, &request).await?;
    let result = answer.results_by_transaction.first().ok_or(ResponseError::NetworkException)?;
    let known = &result.unknown_tagged_fields;
    match (tags::int(known, tags::NUMBER), tags::int(known, tags::ERROR)) {
        (Some(number), _) => Ok(number),
        (None, Some(code)) => Err(error_of(code)),
        (None, None) => Err(ResponseError::NetworkException),
    }
}

/// Why a marker was not written, and where the open transaction begins if its number is not known there.
struct Refusal {
    error: ResponseError,
    first: Option<Offset>,
}

impl From<ResponseError> for Refusal {
    fn from(error: ResponseError) -> Self {
        Refusal { error, first: None }
    }
}

async fn write_once(
    broker: &Broker,
    topic: TopicId,
    index: i32,
    marker: Marker,
    first: Option<Offset>,
) -> Result<(), Refusal> {
    let image = broker.cluster.image();
    let known = image.topic_by_id(topic).ok_or(ResponseError::UnknownTopicId)?;
    let leader = known.leader(index).ok_or(ResponseError::LeaderNotAvailable)?;
    if leader == broker.cluster.broker_id() {
        let partition =
            broker.cluster.engine().get(topic, index).ok_or(ResponseError::NotLeaderOrFollower)?;
        let marker = storage::Marker {
            producer_id: marker.producer_id,
            producer_epoch: marker.producer_epoch,
            commit: marker.commit,
            coordinator_epoch: marker.coordinator_epoch,
            number: marker.number,
            first,
        };
        return partition.write_marker(marker).await.map_err(|e| match e {
            MarkerError::Unverified { first } => Refusal { error: marker_error(&e), first: Some(first) },
            e => marker_error(&e).into(),
        });
    }
    let address = address(broker, leader)?;
    let name = TopicName(StrBytes::from_string(known.name.clone()));
    let topic = WritableTxnMarkerTopic::default().with_name(name).with_partition_indexes(vec![index]);
    let asked = writable(marker, first).with_topics(vec![topic]);
    let request = WriteTxnMarkersRequest::default().with_markers(vec![asked]);
    let answer: WriteTxnMarkersResponse =
        peers::call(as_ref(&address), ApiKey::WriteTxnMarkers, MARKERS, &request).await?;
    let rows = answer.markers.first().and_then(|m| m.topics.first()).map(|t| &t.partitions);
    let row = rows.and_then(|rows| rows.first()).ok_or(ResponseError::NetworkException)?;
    match ResponseError::try_from_code(row.error_code) {
        None => Ok(()),
        Some(error) => {
            let first = tags::int(&row.unknown_tagged_fields, tags::FIRST);
            Err(Refusal { error, first: first.and_then(|at| i64::try_from(at).ok()).map(Offset) })
        }
    }
}

fn writable(marker: Marker, first: Option<Offset>) -> WritableTxnMarker {
    let mut asked = WritableTxnMarker::default()
        .with_producer_id(ProducerId(marker.producer_id))
        .with_producer_epoch(marker.producer_epoch)
        .with_transaction_result(marker.commit)
        .with_coordinator_epoch(marker.coordinator_epoch);
    if let Some(number) = marker.number {
        asked = asked.with_unknown_tagged_field(tags::NUMBER, tags::of_int(number));
    }
    if let Some(first) = first {
        asked = asked.with_unknown_tagged_field(tags::FIRST, tags::of_int(first.0.unsigned_abs()));
    }
    asked
}

type Address = (String, u16);

fn as_ref(address: &Address) -> (&str, u16) {
    (&address.0, address.1)
}

/// Where the coordinator of a group or transactional id is; `None`: here.
fn coordinator(broker: &Broker, id: &str) -> Result<Option<Address>, ResponseError> {
    let image = broker.cluster.image();
    let coordinator = image.coordinator(slot_of(id)).ok_or(ResponseError::CoordinatorNotAvailable)?;
    match coordinator == broker.cluster.broker_id() {
        true => Ok(None),
        false => address(broker, coordinator).map(Some),
    }
}

fn address(broker: &Broker, id: BrokerId) -> Result<Address, ResponseError> {
    let members = members_of(broker);
    let member = members.iter().find(|m| m.id.0 == id.0);
    let found = member.and_then(|m| Some((m.host.to_string(), u16::try_from(m.port).ok()?)));
    found.ok_or(ResponseError::BrokerNotAvailable)
}

fn error_of(code: u64) -> ResponseError {
    let code = i16::try_from(code).unwrap_or(-1);
    ResponseError::try_from_code(code).unwrap_or(ResponseError::UnknownServerError)
}
