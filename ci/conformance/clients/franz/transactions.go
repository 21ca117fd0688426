package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"
)

// Transactions come in two generations. The second (KIP-890, part 2) adds partitions with the first produce and
// bumps the epoch with every end; a client that is held to the versions of Kafka 3.8 speaks the first.
var generations = []struct {
	name    string
	options []kgo.Opt
}{
	{"txn1", []kgo.Opt{kgo.MaxVersions(kversion.V3_8_0())}},
	{"txn2", nil},
}

type transactor struct {
	*t
	cl    *kgo.Client
	id    string
	first bool // of the first generation
}

func (c *t) transactor(id string, options ...kgo.Opt) transactor {
	all := append([]kgo.Opt{
		kgo.TransactionalID(id),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.TransactionTimeout(60 * time.Second),
	}, options...)
	cl := c.client(all...)
	return transactor{c, cl, id, cl.OptValue(kgo.MaxVersions) != (*kversion.Versions)(nil)}
}

func record(topic string, partition int, value string) *kgo.Record {
	return &kgo.Record{Topic: topic, Partition: int32(partition), Value: []byte(value)}
}

func (x transactor) begin(records ...*kgo.Record) {
	x.must(x.cl.BeginTransaction())
	x.produce(x.cl, records...)
}

func (x transactor) end(how kgo.TransactionEndTry) { x.must(x.cl.EndTransaction(x.ctx, how)) }

// seen reads a topic of one partition to its end, as far as the isolation level has one.
func (c *t) seen(topic string, level kgo.IsolationLevel) []string {
	admin := kadm.NewClient(c.client())
	defer admin.Close()
	list := admin.ListEndOffsets
	if level == kgo.ReadCommitted() {
		list = admin.ListCommittedOffsets
	}
	ends, err := list(c.ctx, topic)
	c.must(err)
	left := map[int32]int64{}
	from := map[int32]kgo.Offset{}
	ends.Each(func(o kadm.ListedOffset) {
		from[o.Partition] = kgo.NewOffset().At(0)
		if o.Offset > 0 {
			left[o.Partition] = o.Offset
		}
	})
	cl := c.client(
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}),
		kgo.FetchIsolationLevel(level),
		kgo.KeepControlRecords(), // what ends a transaction may be the last in the log
		kgo.FetchMaxWait(100*time.Millisecond),
	)
	defer cl.Close()
	got := []string{}
	for end := time.Now().Add(20 * time.Second); len(left) > 0; {
		if time.Now().After(end) {
			c.fail("the end of %s is not reached: %v", topic, left)
		}
		fetches := cl.PollFetches(c.ctx)
		c.must(fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() {
				got = append(got, string(r.Value))
			}
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		})
	}
	return got
}

func (c *t) committed(topic string, wanted ...string) {
	var last []string
	c.until(45*time.Second, fmt.Sprintf("%v in %s", wanted, topic), func() bool {
		last = c.seen(topic, kgo.ReadCommitted())
		return len(last) >= len(wanted)
	})
	same(c, last, wanted, "committed values")
}

func (c *t) wantFenced(err error) {
	if !errors.Is(err, kerr.InvalidProducerEpoch) && !errors.Is(err, kerr.ProducerFenced) {
		c.fail("got %v, wanted to be fenced", err)
	}
}

func (c *t) offset(group, topic string) int64 {
	admin := c.admin()
	defer admin.Close()
	var found kadm.OffsetResponses
	c.until(10*time.Second, "the group's coordinator answers", func() bool {
		var err error
		found, err = admin.FetchOffsets(c.ctx, group)
		return err == nil
	})
	at, there := found.Lookup(topic, 0)
	if !there {
		return -1
	}
	return at.At
}

func transactionChecks() []check {
	var all []check
	for _, g := range generations {
		add := func(name string, body func(*t, string, []kgo.Opt)) {
			unique := strings.ReplaceAll("franz-"+g.name+"-"+name, "_", "-")
			all = append(all, check{name: g.name + "_" + name, body: func(c *t) { body(c, unique, g.options) }})
		}
		add("commit", txnCommit)
		add("abort", txnAbort)
		add("empty", txnEmpty)
		add("many_topics_and_partitions", txnMany)
		add("zombie_fenced", txnZombie)
		add("timeout_aborts", txnTimeout)
		add("offsets_follow_the_outcome", txnOffsets)
		add("consume_transform_produce", txnTransform)
	}
	return all
}

func txnCommit(c *t, name string, how []kgo.Opt) {
	topic, x := c.create(name, 1), c.transactor(name, how...)
	defer x.cl.Close()
	x.begin(record(topic, 0, "a"), record(topic, 0, "b"))
	same(c, c.seen(topic, kgo.ReadCommitted()), []string{}, "committed before the commit")
	same(c, c.seen(topic, kgo.ReadUncommitted()), []string{"a", "b"}, "uncommitted before the commit")
	x.end(kgo.TryCommit)
	c.committed(topic, "a", "b")
}

func txnAbort(c *t, name string, how []kgo.Opt) {
	topic, x := c.create(name, 1), c.transactor(name, how...)
	defer x.cl.Close()
	x.begin(record(topic, 0, "no"))
	x.end(kgo.TryAbort)
	x.begin(record(topic, 0, "yes"))
	x.end(kgo.TryCommit)
	c.committed(topic, "yes")
	same(c, c.seen(topic, kgo.ReadUncommitted()), []string{"no", "yes"}, "uncommitted")
}

func txnEmpty(c *t, name string, how []kgo.Opt) {
	topic, x := c.create(name, 1), c.transactor(name, how...)
	defer x.cl.Close()
	for _, end := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort, kgo.TryCommit} {
		c.must(x.cl.BeginTransaction())
		x.end(end)
	}
	x.begin(record(topic, 0, "x"))
	x.end(kgo.TryCommit)
	c.committed(topic, "x")
}

func txnMany(c *t, name string, how []kgo.Opt) {
	topics := []string{c.create(name+"-a", 3), c.create(name+"-b", 3)}
	x := c.transactor(name, how...)
	defer x.cl.Close()
	for _, end := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
		var records []*kgo.Record
		for i := range 600 {
			records = append(records, record(topics[i%2], i%3, fmt.Sprint(end, i)))
		}
		x.begin(records...)
		x.end(end)
	}
	for at, topic := range topics {
		var wanted []string
		for i := range 600 {
			if i%2 == at {
				wanted = append(wanted, fmt.Sprint(kgo.TryCommit, i))
			}
		}
		c.until(20*time.Second, "300 values of "+topic, func() bool { return len(c.seen(topic, kgo.ReadCommitted())) == 300 })
		same(c, sorted(c.seen(topic, kgo.ReadCommitted())), sorted(wanted), "values of "+topic)
	}
}

func txnZombie(c *t, name string, how []kgo.Opt) {
	topic, old := c.create(name, 1), c.transactor(name, how...)
	defer old.cl.Close()
	old.begin(record(topic, 0, "of the zombie"))
	young := c.transactor(name, how...)
	defer young.cl.Close()
	young.begin(record(topic, 0, "of the successor"))
	c.wantFenced(old.cl.ProduceSync(c.ctx, record(topic, 0, "late")).FirstErr())
	if old.cl.EndTransaction(c.ctx, kgo.TryCommit) == nil {
		c.fail("the zombie committed")
	}
	young.end(kgo.TryCommit)
	c.committed(topic, "of the successor")
}

func txnTimeout(c *t, name string, how []kgo.Opt) {
	topic := c.create(name, 1)
	x := c.transactor(name, append(how, kgo.TransactionTimeout(1500*time.Millisecond))...)
	defer x.cl.Close()
	x.begin(record(topic, 0, "too slow"))
	c.produceValues(topic, []string{"behind"})
	c.until(40*time.Second, "the transaction is given up", func() bool { return len(c.seen(topic, kgo.ReadCommitted())) == 1 })
	same(c, c.seen(topic, kgo.ReadCommitted()), []string{"behind"}, "committed values")
	if x.cl.EndTransaction(c.ctx, kgo.TryCommit) == nil {
		c.fail("a transaction that timed out was committed")
	}
}

// commitIn adds a group's offset to the open transaction, as nobody's member. The client has no call for that.
func (x transactor) commitIn(group, topic string, offset int64) {
	id, epoch, err := x.cl.ProducerID(x.ctx)
	x.must(err)
	raw := x.raw(2)
	defer raw.cl.Close()
	p := producer{x.id, id, epoch}
	if x.first {
		raw = x.raw(1)
		defer raw.cl.Close()
		same(x.t, raw.addOffsets(p, group), 0, "AddOffsetsToTxn")
	}
	same(x.t, raw.commitOffset(p, group, topic, offset), 0, "TxnOffsetCommit")
}

func txnOffsets(c *t, name string, how []kgo.Opt) {
	topic, x := c.create(name, 1), c.transactor(name, how...)
	defer x.cl.Close()
	for _, step := range []struct {
		end    kgo.TransactionEndTry
		offset int64
		wanted int64
	}{{kgo.TryCommit, 5, 5}, {kgo.TryAbort, 9, 5}} {
		before := c.offset(name, topic)
		x.begin(record(topic, 0, "with offsets"))
		x.commitIn(name, topic, step.offset)
		same(c, c.offset(name, topic), before, "while pending")
		x.end(step.end)
		c.until(10*time.Second, "the offset follows", func() bool { return c.offset(name, topic) == step.wanted })
	}
}

func txnTransform(c *t, name string, how []kgo.Opt) {
	from, to := c.create(name+"-from", 2), c.create(name+"-to", 1)
	c.produceValues(from, numbered(60, 10))
	done := 0
	for _, upTo := range []int{30, 60} { // a second member goes on where the first stopped
		s, err := kgo.NewGroupTransactSession(append([]kgo.Opt{
			kgo.SeedBrokers(address),
			kgo.TransactionalID(name),
			kgo.TransactionTimeout(60 * time.Second),
			kgo.ConsumerGroup(name),
			kgo.ConsumeTopics(from),
			kgo.FetchIsolationLevel(kgo.ReadCommitted()),
			kgo.RequireStableFetchOffsets(),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		}, how...)...)
		c.must(err)
		for round := 1; done < upTo; round++ {
			records := s.PollRecords(c.ctx, 7).Records()
			c.must(s.Begin())
			for _, r := range records {
				s.Produce(c.ctx, &kgo.Record{Topic: to, Value: r.Value}, nil)
			}
			committed, err := s.End(c.ctx, kgo.TransactionEndTry(round%3 != 0))
			c.must(err)
			if committed {
				done += len(records)
			}
		}
		s.Close()
	}
	c.until(20*time.Second, "60 values", func() bool { return len(c.seen(to, kgo.ReadCommitted())) >= 60 })
	same(c, sorted(c.seen(to, kgo.ReadCommitted())), sorted(numbered(60, 10)), "values, each once")
}

// restarts runs transactions on a broker that is killed where `again` says.
func restarts(again func()) {
	for _, g := range generations {
		ctx, cancel := context.WithTimeout(context.Background(), 230*time.Second)
		k := check{name: g.name + "_survives_kill9", limit: 230 * time.Second, body: func(c *t) {
			restartsOf(&t{ctx}, "franz-restart-"+g.name, g.options, again)
		}}
		k.run()
		cancel()
	}
}

func restartsOf(c *t, name string, how []kgo.Opt, again func()) {
	topic, x := c.create(name, 1), c.transactor(name, how...)
	defer x.cl.Close()
	x.begin(record(topic, 0, "before"))
	x.end(kgo.TryCommit)
	again() // between transactions
	x.begin(record(topic, 0, "begun"))
	again() // in one that commits
	x.produce(x.cl, record(topic, 0, "went on"))
	x.end(kgo.TryCommit)
	again() // right after its commit
	c.committed(topic, "before", "begun", "went on")
	x.begin(record(topic, 0, "given up"))
	again() // in one that aborts
	x.end(kgo.TryAbort)
	x.begin(record(topic, 0, "with offsets"))
	x.commitIn(name, topic, 5)
	again() // while offsets are pending
	same(c, c.offset(name, topic), int64(-1), "while pending")
	x.end(kgo.TryCommit)
	c.until(10*time.Second, "the offset follows", func() bool { return c.offset(name, topic) == 5 })
	c.committed(topic, "before", "begun", "went on", "with offsets")
}
