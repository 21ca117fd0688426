package main

import (
	"fmt"
	"hash/crc32"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// raw sends single requests of one generation of the transactions' protocol, and tells error codes.
type raw struct {
	*t
	cl         *kgo.Client
	generation int
}

// producer is a transactional id with the identity that the coordinator gave it.
type producer struct {
	txn   string
	id    int64
	epoch int16
}

func (p producer) aged(by int16) producer { return producer{p.txn, p.id, p.epoch - by} }

func (c *t) raw(generation int) raw {
	limits := kversion.Stable()
	caps := map[kmsg.Key]int16{kmsg.Produce: 12, kmsg.EndTxn: 5, kmsg.TxnOffsetCommit: 5}
	if generation == 1 {
		caps = map[kmsg.Key]int16{kmsg.Produce: 11, kmsg.EndTxn: 4, kmsg.TxnOffsetCommit: 4}
	}
	caps[kmsg.AddPartitionsToTxn] = 3 // 4 and later are the brokers' own
	for key, version := range caps {
		limits.SetMaxKeyVersion(int16(key), version)
	}
	return raw{c, c.client(kgo.MaxVersions(limits)), generation}
}

func (r raw) init(txn string, timeout int32, of *producer) (producer, int16) {
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionalID, req.TransactionTimeoutMillis = &txn, timeout
	req.ProducerID, req.ProducerEpoch = -1, -1
	if of != nil {
		req.ProducerID, req.ProducerEpoch = of.id, of.epoch
	}
	for {
		resp, err := req.RequestWith(r.ctx, r.cl)
		r.must(err)
		if resp.ErrorCode == 51 { // what was open before is being ended
			time.Sleep(20 * time.Millisecond)
			continue
		}
		return producer{txn, resp.ProducerID, resp.ProducerEpoch}, resp.ErrorCode
	}
}

func (r raw) started(txn string) producer {
	p, code := r.init(txn, 60000, nil)
	same(r.t, code, 0, "InitProducerId")
	return p
}

func (r raw) addPartition(p producer, topic string, partition int32) int16 {
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch = p.txn, p.id, p.epoch
	req.Topics = []kmsg.AddPartitionsToTxnRequestTopic{{Topic: topic, Partitions: []int32{partition}}}
	for {
		resp, err := req.RequestWith(r.ctx, r.cl)
		r.must(err)
		code := resp.Topics[0].Partitions[0].ErrorCode
		if code == 51 { // the last transaction's markers are still being written
			time.Sleep(20 * time.Millisecond)
			continue
		}
		return code
	}
}

func (r raw) addOffsets(p producer, group string) int16 {
	req := kmsg.NewPtrAddOffsetsToTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Group = p.txn, p.id, p.epoch, group
	resp, err := req.RequestWith(r.ctx, r.cl)
	r.must(err)
	return resp.ErrorCode
}

func (r raw) commitOffset(p producer, group, topic string, offset int64) int16 {
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch = p.txn, p.id, p.epoch
	req.Group, req.Generation = group, -1
	of := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	of.Offset, of.LeaderEpoch = offset, -1
	req.Topics = []kmsg.TxnOffsetCommitRequestTopic{{Topic: topic, Partitions: []kmsg.TxnOffsetCommitRequestTopicPartition{of}}}
	for {
		resp, err := req.RequestWith(r.ctx, r.cl)
		r.must(err)
		code := resp.Topics[0].Partitions[0].ErrorCode
		if code == 51 {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		return code
	}
}

// end returns the identity to go on with, which generation 1 leaves as it is.
func (r raw) end(p producer, commit bool) (producer, int16) {
	req := kmsg.NewPtrEndTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = p.txn, p.id, p.epoch, commit
	for {
		resp, err := req.RequestWith(r.ctx, r.cl)
		r.must(err)
		if resp.ErrorCode == 51 {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		if r.generation == 2 && resp.ErrorCode == 0 {
			p.id, p.epoch = resp.ProducerID, resp.ProducerEpoch
		}
		return p, resp.ErrorCode
	}
}

// produce sends one transactional record to partition 0 of the only broker.
func (r raw) produce(p producer, topic string, sequence int32, value string) int16 {
	req := kmsg.NewPtrProduceRequest()
	req.TransactionID, req.Acks, req.TimeoutMillis = &p.txn, -1, 10000
	part := kmsg.NewProduceRequestTopicPartition()
	part.Records = batch(p, sequence, value)
	of := kmsg.NewProduceRequestTopic()
	of.Topic, of.Partitions = topic, []kmsg.ProduceRequestTopicPartition{part}
	req.Topics = []kmsg.ProduceRequestTopic{of}
	for {
		answer, err := r.cl.Broker(r.broker()).Request(r.ctx, req)
		r.must(err)
		code := answer.(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode
		if code == 51 {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		return code
	}
}

func (r raw) broker() int {
	admin := r.admin()
	defer admin.Close()
	found, err := admin.ListBrokers(r.ctx)
	r.must(err)
	return int(found[0].NodeID)
}

func batch(p producer, sequence int32, value string) []byte {
	record := kmsg.Record{Value: []byte(value)}
	body := record.AppendTo(nil)
	record.Length = int32(len(body) - kbin.VarintLen(record.Length))
	now := time.Now().UnixMilli()
	b := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1,
		Magic:                2,
		Attributes:           1 << 4, // transactional
		FirstTimestamp:       now,
		MaxTimestamp:         now,
		ProducerID:           p.id,
		ProducerEpoch:        p.epoch,
		FirstSequence:        sequence,
		NumRecords:           1,
		Records:              record.AppendTo(nil),
	}
	raw := b.AppendTo(nil)
	b.Length = int32(len(raw) - 12)
	b.CRC = int32(crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b.AppendTo(nil)
}

// begin has the first record of a transaction accepted.
func (r raw) begin(p producer, topic string, sequence int32, value string) {
	if r.generation == 1 {
		same(r.t, r.addPartition(p, topic, 0), 0, "AddPartitionsToTxn")
	}
	same(r.t, r.produce(p, topic, sequence, value), 0, "Produce")
}

// refused: one of these codes, whichever a generation has for it.
func (r raw) refused(code int16, wanted ...int16) {
	for _, w := range wanted {
		if code == w {
			return
		}
	}
	r.fail("error %d, wanted one of %d", code, wanted)
}

func rawChecks() []check {
	var all []check
	for generation := 1; generation <= 2; generation++ {
		add := func(name string, body func(raw, string)) {
			unique := fmt.Sprintf("franz-raw%d-%s", generation, name)
			all = append(all, check{name: fmt.Sprintf("%s_txn%d", name, generation), body: func(c *t) {
				r := c.raw(generation)
				defer r.cl.Close()
				body(r, c.create(unique, 1))
			}})
		}
		add("case_46_late_write_after_the_marker", lateWrite)
		add("case_50_timeout_above_the_limit", longTimeout)
		add("unverified_write_refused", unverified)
		add("end_is_idempotent", endTwice)
		add("init_is_idempotent", initTwice)
		add("zombie_ends_nothing", zombieEnd)
	}
	return append(all, check{name: "abort_of_nothing_txn2", body: func(c *t) {
		r := c.raw(2)
		defer r.cl.Close()
		abortNothing(r, c.create("franz-raw2-abort-of-nothing", 1))
	}})
}

// With the second generation a client that does not know whether its produce added a partition aborts in any case: that is
// allowed though nothing was begun, and bumps the epoch; a commit of nothing is refused.
func abortNothing(r raw, topic string) {
	p := r.started(topic)
	after, code := r.end(p, false)
	same(r.t, code, 0, "abort, nothing ever begun")
	same(r.t, after, producer{topic, p.id, p.epoch + 1}, "who to go on as")
	r.begin(after, topic, 0, "x")
	after, code = r.end(after, true)
	same(r.t, code, 0, "commit")
	again, code := r.end(after, false)
	same(r.t, code, 0, "abort, nothing begun since the commit")
	same(r.t, again, producer{topic, after.id, after.epoch + 1}, "who to go on as then")
	_, code = r.end(again, true)
	r.refused(code, 48)
	r.committed(topic, "x")
}

// A transactional record that comes after its transaction's marker would pin the LSO for good (KAFKA-14402).
func lateWrite(r raw, topic string) {
	for _, commit := range []bool{false, true} {
		p := r.started(topic)
		r.begin(p, topic, 0, fmt.Sprint("in time ", commit))
		_, code := r.end(p, commit)
		same(r.t, code, 0, "EndTxn")
		end := int64(2)
		if commit {
			end = 4
		}
		lso := func() int64 {
			admin := r.admin()
			defer admin.Close()
			ends, err := admin.ListCommittedOffsets(r.ctx, topic)
			r.must(err)
			found, _ := ends.Lookup(topic, 0)
			return found.Offset
		}
		r.until(10*time.Second, "the marker is written", func() bool { return lso() == end })
		r.refused(r.produce(p, topic, 1, "late"), 48, 120, 47)
		same(r.t, lso(), end, "LSO")
	}
	r.committed(topic, "in time true")
	same(r.t, r.seen(topic, kgo.ReadUncommitted()), []string{"in time false", "in time true"}, "in the log")
}

func longTimeout(r raw, topic string) {
	_, code := r.init(topic, 900_001, nil)
	r.refused(code, 50)
	_, code = r.init(topic, 900_000, nil)
	same(r.t, code, 0, "the limit itself")
}

// A record of a transaction that its coordinator does not know is not appended (KIP-890, part 1).
func unverified(r raw, topic string) {
	p := r.started(topic)
	if r.generation == 2 {
		p.epoch += 7 // with this generation a produce itself adds the partition; not for an epoch that never was
	}
	r.refused(r.produce(p, topic, 0, "of nothing"), 48, 120, 47, 90)
	same(r.t, r.seen(topic, kgo.ReadUncommitted()), []string{}, "in the log")
}

// An answer that was lost is asked for again, and is the same; the opposite is refused.
func endTwice(r raw, topic string) {
	p := r.started(topic)
	r.begin(p, topic, 0, "x")
	after, code := r.end(p, true)
	same(r.t, code, 0, "EndTxn")
	r.committed(topic, "x")
	again, code := r.end(p, true)
	same(r.t, code, 0, "EndTxn, again")
	same(r.t, again, after, "who to go on as")
	_, code = r.end(p, false)
	r.refused(code, 48, 47, 90)
	r.committed(topic, "x")
}

func initTwice(r raw, topic string) {
	p := r.started(topic)
	first, code := r.init(topic, 60000, &p)
	same(r.t, code, 0, "InitProducerId of itself")
	same(r.t, first, producer{topic, p.id, p.epoch + 1}, "one epoch on")
	second, code := r.init(topic, 60000, &p)
	same(r.t, code, 0, "the same again")
	same(r.t, second, first, "what it answers")
	stranger := producer{topic, p.id + 1000, 0}
	_, code = r.init(topic, 60000, &stranger)
	r.refused(code, 90, 47)
}

func zombieEnd(r raw, topic string) {
	old := r.started(topic)
	r.begin(old, topic, 0, "of the zombie")
	young := r.started(topic)
	r.begin(young, topic, 0, "of the successor")
	for _, commit := range []bool{true, false} {
		_, code := r.end(old, commit)
		r.refused(code, 90, 47)
	}
	r.refused(r.produce(old, topic, 1, "late"), 47, 90)
	_, code := r.end(young, true)
	same(r.t, code, 0, "EndTxn")
	r.committed(topic, "of the successor")
}
