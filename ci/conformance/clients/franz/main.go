// Command franz runs franz-go, with its admin client kadm, against the broker:
//
//	franz ADDRESS [NAME...]          the ordinary checks
//	franz load ADDRESS kill9|sigterm the load run (load.go)
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	address string
	target  = os.Getenv("CONFORMANCE_TARGET")
	printer sync.Mutex
)

type check struct {
	name          string
	limit         time.Duration
	highwaterOnly bool
	body          func(*t)
}

// t is one running check: its context ends at its limit, and must panics end it.
type t struct{ ctx context.Context }

type failure string

func (c *t) fail(format string, args ...any) { panic(failure(fmt.Sprintf(format, args...))) }

func (c *t) must(err error) {
	if err != nil {
		c.fail("%v", err)
	}
}

func same[V any](c *t, got, wanted V, what string) {
	if g, w := fmt.Sprintf("%v", got), fmt.Sprintf("%v", wanted); g != w {
		c.fail("%s: got %.200s, wanted %.200s", what, g, w)
	}
}

func (c *t) until(limit time.Duration, what string, condition func() bool) {
	for end := time.Now().Add(limit); !condition(); time.Sleep(30 * time.Millisecond) {
		if time.Now().After(end) {
			c.fail("not within %v: %s", limit, what)
		}
	}
}

func say(line string) {
	printer.Lock()
	defer printer.Unlock()
	fmt.Println(line)
}

func report(name string, started time.Time, problem string) {
	took := time.Since(started).Seconds()
	if problem == "" {
		say(fmt.Sprintf("ok %s %.2f", name, took))
		return
	}
	reason := strings.Join(strings.Fields(problem), " ")
	say(fmt.Sprintf("not ok %s %.2f %.600s", name, took, reason))
}

func (k check) run() {
	limit := k.limit
	if limit == 0 {
		limit = 60 * time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	started, done := time.Now(), make(chan string, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				done <- fmt.Sprintf("%v", r)
			}
		}()
		k.body(&t{ctx})
		done <- ""
	}()
	select {
	case problem := <-done:
		report(k.name, started, problem)
	case <-time.After(limit + 2*time.Second):
		report(k.name, started, fmt.Sprintf("no end within %v", limit))
	}
}

func (c *t) client(options ...kgo.Opt) *kgo.Client {
	all := append([]kgo.Opt{kgo.SeedBrokers(address), kgo.MetadataMinAge(100 * time.Millisecond)}, options...)
	cl, err := kgo.NewClient(all...)
	c.must(err)
	return cl
}

func (c *t) admin() *kadm.Client { return kadm.NewClient(c.client()) }

func (c *t) create(topic string, partitions int32, config ...string) string {
	configs := map[string]*string{}
	for i := 0; i < len(config); i += 2 {
		configs[config[i]] = &config[i+1]
	}
	admin := c.admin()
	defer admin.Close()
	_, err := admin.CreateTopic(c.ctx, partitions, 1, configs, topic)
	c.must(err)
	c.until(10*time.Second, "every partition has a leader", func() bool {
		found, err := admin.ListTopics(c.ctx, topic)
		return err == nil && found[topic].Err == nil && len(found[topic].Partitions) == int(partitions)
	})
	return topic
}

func (c *t) produce(cl *kgo.Client, records ...*kgo.Record) {
	c.must(cl.ProduceSync(c.ctx, records...).FirstErr())
}

func (c *t) produceValues(topic string, values []string, options ...kgo.Opt) {
	cl := c.client(options...)
	defer cl.Close()
	records := make([]*kgo.Record, len(values))
	for i, v := range values {
		records[i] = &kgo.Record{Topic: topic, Value: []byte(v)}
	}
	c.produce(cl, records...)
}

// read reads the whole topic, and sees that it holds count records.
func (c *t) read(topic string, count int) []*kgo.Record {
	admin := c.admin()
	defer admin.Close()
	starts, err := admin.ListStartOffsets(c.ctx, topic)
	c.must(err)
	ends, err := admin.ListEndOffsets(c.ctx, topic)
	c.must(err)
	from, left := map[int32]kgo.Offset{}, map[int32]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		start, _ := starts.Lookup(topic, o.Partition)
		from[o.Partition] = kgo.NewOffset().At(start.Offset)
		if o.Offset > start.Offset {
			left[o.Partition] = o.Offset
		}
	})
	cl := c.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}))
	defer cl.Close()
	var got []*kgo.Record
	for len(left) > 0 {
		fetches := cl.PollFetches(c.ctx)
		c.must(fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			got = append(got, r)
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		})
	}
	same(c, len(got), count, "records read")
	return got
}

func values(records []*kgo.Record) []string {
	var found []string
	for _, r := range records {
		found = append(found, string(r.Value))
	}
	return found
}

func numbered(count, size int) []string {
	found := make([]string, count)
	for i := range found {
		found[i] = fmt.Sprintf("value %d %s", i, strings.Repeat("highwater ", size/10))
	}
	return found
}

func sorted(v []string) []string {
	v = slices.Clone(v)
	slices.Sort(v)
	return v
}

func main() {
	if len(os.Args) == 4 && os.Args[1] == "load" {
		address = os.Args[2]
		load(os.Args[3])
		return
	}
	if len(os.Args) == 3 && os.Args[1] == "restarts" {
		address = os.Args[2]
		input := bufio.NewReader(os.Stdin)
		restarts(func() {
			say("kill9") // whoever started this program does it, and answers when the broker is back
			if _, err := input.ReadString('\n'); err != nil {
				panic(failure("nobody restarts the broker"))
			}
		})
		return
	}
	address = os.Args[1]
	only := os.Args[2:]
	all := slices.Concat(adminChecks, recordChecks, groupChecks, transactionChecks(), rawChecks())
	queue := make(chan check)
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for k := range queue {
				k.run()
			}
		})
	}
	for _, k := range all {
		if (len(only) == 0 || slices.Contains(only, k.name)) && !(k.highwaterOnly && target == "kafka") {
			queue <- k
		}
	}
	close(queue)
	workers.Wait()
}
