package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// member is a group consumer that keeps account of what it owns, gave up and read.
type member struct {
	sync.Mutex
	cl         *kgo.Client
	owned      map[int32]bool
	revoked    []int
	rebalances int
	values     []string
	stopped    chan struct{}
}

func (c *t) join(group, topic string, options ...kgo.Opt) *member {
	m := &member{owned: map[int32]bool{}, stopped: make(chan struct{})}
	all := append([]kgo.Opt{
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.DisableAutoCommit(),
		kgo.SessionTimeout(10 * time.Second),
		kgo.HeartbeatInterval(500 * time.Millisecond),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, added map[string][]int32) {
			m.Lock()
			defer m.Unlock()
			m.rebalances++
			for _, p := range added[topic] {
				m.owned[p] = true
			}
		}),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, gone map[string][]int32) {
			m.Lock()
			defer m.Unlock()
			if len(gone[topic]) > 0 {
				m.revoked = append(m.revoked, len(gone[topic]))
			}
			for _, p := range gone[topic] {
				delete(m.owned, p)
			}
		}),
	}, options...)
	m.cl = c.client(all...)
	go func() {
		defer close(m.stopped)
		for {
			fetches := m.cl.PollFetches(context.Background())
			if fetches.IsClientClosed() {
				return
			}
			m.Lock()
			m.values = append(m.values, values(fetches.Records())...)
			m.Unlock()
		}
	}()
	return m
}

func (m *member) stop() {
	m.cl.Close() // leaves the group, a static member aside
	<-m.stopped
}

func (m *member) partitions() []int32 {
	m.Lock()
	defer m.Unlock()
	var found []int32
	for p := range m.owned {
		found = append(found, p)
	}
	slices.Sort(found)
	return found
}

func (m *member) read() []string {
	m.Lock()
	defer m.Unlock()
	return slices.Clone(m.values)
}

func (c *t) shares(wanted []int, members ...*member) {
	c.until(40*time.Second, fmt.Sprintf("shares %v", wanted), func() bool {
		var found []int
		for _, m := range members {
			found = append(found, len(m.partitions()))
		}
		slices.Sort(found)
		return slices.Equal(found, wanted)
	})
}

var groupChecks = []check{
	{name: "group_two_members_rebalance", limit: 120 * time.Second, body: func(c *t) {
		topic, sent := c.create("franz-group-two", 4), numbered(100, 20)
		eager := kgo.Balancers(kgo.RangeBalancer())
		a := c.join("franz-two", topic, eager)
		c.shares([]int{4}, a)
		b := c.join("franz-two", topic, eager)
		c.shares([]int{2, 2}, a, b)
		cl := c.client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
		defer cl.Close()
		for i, v := range sent {
			c.produce(cl, &kgo.Record{Topic: topic, Partition: int32(i % 4), Value: []byte(v)})
		}
		c.until(30*time.Second, "all read", func() bool { return len(a.read())+len(b.read()) >= 100 })
		same(c, sorted(slices.Concat(a.read(), b.read())), sorted(sent), "values, each once")
		b.stop()
		c.shares([]int{4}, a)
		a.stop()
	}},
	{name: "group_cooperative_sticky", limit: 120 * time.Second, body: func(c *t) {
		topic := c.create("franz-coop", 4)
		sticky := kgo.Balancers(kgo.CooperativeStickyBalancer())
		a := c.join("franz-coop", topic, sticky)
		c.shares([]int{4}, a)
		b := c.join("franz-coop", topic, sticky)
		c.shares([]int{2, 2}, a, b)
		same(c, a.revoked, []int{2}, "what the first gave up")
		b.stop()
		c.shares([]int{4}, a)
		a.stop()
	}},
	{name: "group_static_membership", limit: 120 * time.Second, body: func(c *t) {
		topic := c.create("franz-static", 4)
		slow := kgo.SessionTimeout(30 * time.Second)
		a := c.join("franz-static", topic, kgo.InstanceID("a"), slow)
		b := c.join("franz-static", topic, kgo.InstanceID("b"), slow)
		c.shares([]int{2, 2}, a, b)
		time.Sleep(500 * time.Millisecond)
		a.Lock()
		before, mine := a.rebalances, b.partitions()
		a.Unlock()
		b.stop()
		b = c.join("franz-static", topic, kgo.InstanceID("b"), slow)
		c.shares([]int{2, 2}, a, b)
		time.Sleep(1500 * time.Millisecond)
		same(c, b.partitions(), mine, "partitions of the one that came back")
		a.Lock()
		same(c, a.rebalances, before, "rebalances of the other")
		a.Unlock()
		a.stop()
		b.stop()
	}},
	{name: "group_commit_resume", body: func(c *t) {
		topic, group := c.create("franz-resume", 1), "franz-resume"
		c.produceValues(topic, numbered(10, 10))
		options := []kgo.Opt{kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit()}
		first := c.client(options...)
		records := first.PollRecords(c.ctx, 6).Records()
		for len(records) < 6 {
			records = append(records, first.PollRecords(c.ctx, 6-len(records)).Records()...)
		}
		c.must(first.CommitRecords(c.ctx, records...))
		first.Close()
		second := c.client(options...)
		defer second.Close()
		fetches := second.PollFetches(c.ctx)
		c.must(fetches.Err())
		same(c, fetches.Records()[0].Offset, 6, "resumed at")
	}},
	{name: "group_auto_commit", body: func(c *t) {
		topic, group := c.create("franz-auto-commit", 1), "franz-auto-commit"
		c.produceValues(topic, numbered(10, 10))
		cl := c.client(kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.AutoCommitInterval(200*time.Millisecond))
		for got := 0; got < 10; {
			got += len(cl.PollFetches(c.ctx).Records())
		}
		cl.PollRecords(shortly(c.ctx), 1) // what was polled before counts as done
		admin := c.admin()
		defer admin.Close()
		c.until(10*time.Second, "committed", func() bool {
			found, err := admin.FetchOffsets(c.ctx, group)
			at, _ := found.Lookup(topic, 0)
			return err == nil && at.At == 10
		})
		cl.Close()
	}},
	{name: "group_list_describe", body: func(c *t) {
		topic, group := c.create("franz-gdescribe", 2), "franz-gdescribe"
		m := c.join(group, topic, kgo.ClientID("my-client"))
		c.shares([]int{2}, m)
		admin := c.admin()
		defer admin.Close()
		listed, err := admin.ListGroups(c.ctx)
		c.must(err)
		same(c, listed[group].State, "Stable", "listed state")
		listed, err = admin.ListGroups(c.ctx, "Empty")
		c.must(err)
		if _, there := listed[group]; there {
			c.fail("a stable group is listed as empty")
		}
		found, err := admin.DescribeGroups(c.ctx, group)
		c.must(err)
		same(c, []any{found[group].State, len(found[group].Members), found[group].Members[0].ClientID}, []any{"Stable", 1, "my-client"}, "state, members, client")
		m.stop()
	}},
	{name: "group_lag", body: func(c *t) {
		topic, group := c.create("franz-lag", 1), "franz-lag"
		c.produceValues(topic, numbered(10, 10))
		admin := c.admin()
		defer admin.Close()
		offsets := kadm.Offsets{}
		offsets.AddOffset(topic, 0, 3, -1)
		c.must(admin.CommitAllOffsets(c.ctx, group, offsets))
		found, err := admin.Lag(c.ctx, group)
		c.must(err)
		lag := found[group]
		c.must(lag.Error())
		same(c, lag.Lag.Total(), 7, "lag")
	}},
	{name: "group_offsets_many_groups", body: func(c *t) {
		topic := c.create("franz-many", 1)
		admin := c.admin()
		defer admin.Close()
		for i, group := range []string{"franz-many-a", "franz-many-b"} {
			offsets := kadm.Offsets{}
			offsets.AddOffset(topic, 0, int64(i+1), -1)
			c.must(admin.CommitAllOffsets(c.ctx, group, offsets))
		}
		found := admin.FetchManyOffsets(c.ctx, "franz-many-a", "franz-many-b", "franz-many-none")
		c.must(found.Error())
		a, _ := found["franz-many-a"].Fetched.Lookup(topic, 0)
		b, _ := found["franz-many-b"].Fetched.Lookup(topic, 0)
		same(c, []int64{a.At, b.At}, []int64{1, 2}, "offsets")
		same(c, len(found["franz-many-none"].Fetched), 0, "offsets of a group that is not there")
	}},
	{name: "group_offsets_delete", body: func(c *t) {
		topic, group := c.create("franz-odelete", 2), "franz-odelete"
		admin := c.admin()
		defer admin.Close()
		offsets := kadm.Offsets{}
		offsets.AddOffset(topic, 0, 1, -1)
		offsets.AddOffset(topic, 1, 2, -1)
		c.must(admin.CommitAllOffsets(c.ctx, group, offsets))
		answer, err := admin.DeleteOffsets(c.ctx, group, kadm.TopicsSet{topic: {0: {}}})
		c.must(err)
		c.must(answer.Error())
		found, err := admin.FetchOffsets(c.ctx, group)
		c.must(err)
		_, zero := found.Lookup(topic, 0)
		one, _ := found.Lookup(topic, 1)
		same(c, []any{zero, one.At}, []any{false, int64(2)}, "first is gone, second stays")
	}},
	{name: "group_delete", body: func(c *t) {
		topic, group := c.create("franz-gdelete", 1), "franz-gdelete"
		m := c.join(group, topic)
		c.shares([]int{1}, m)
		admin := c.admin()
		defer admin.Close()
		_, err := admin.DeleteGroup(c.ctx, group)
		c.wantErr(err, kerr.NonEmptyGroup)
		m.stop()
		offsets := kadm.Offsets{}
		offsets.AddOffset(topic, 0, 0, -1)
		c.must(admin.CommitAllOffsets(c.ctx, group, offsets))
		_, err = admin.DeleteGroup(c.ctx, group)
		c.must(err)
		_, err = admin.DeleteGroup(c.ctx, group)
		c.wantErr(err, kerr.GroupIDNotFound)
	}},
}

func shortly(ctx context.Context) context.Context {
	ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	time.AfterFunc(time.Second, cancel)
	return ctx
}
