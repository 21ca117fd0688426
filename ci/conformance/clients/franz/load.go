package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const loadPartitions = 4

type place struct {
	partition int32
	offset    int64
}

// ledger is what the load run was told while it ran.
type ledger struct {
	sync.Mutex
	acked     map[place]string
	failed    []string
	read      map[place]string
	changed   []string
	committed map[int32]int64
	tried     map[int32]int64
	errors    []string
}

// load produces numbered records to four partitions and consumes them in a group, while the broker
// is ended and restarted; when `stop` comes on standard input it reads everything back and compares
// that with what was acknowledged, read and committed.
func load(mode string) {
	c := &t{context.Background()}
	topic := "franz-load-" + mode
	group := topic
	c.create(topic, loadPartitions)
	l := &ledger{acked: map[place]string{}, read: map[place]string{}, committed: map[int32]int64{}, tried: map[int32]int64{}}
	producing, stopProducing := context.WithCancel(c.ctx)
	consuming, stopConsuming := context.WithCancel(c.ctx)
	var producer, consumer sync.WaitGroup
	producer.Go(func() { l.produce(c, producing, topic) })
	consumer.Go(func() { l.consume(c, consuming, topic, group) })

	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	started := time.Now()
	stopProducing()
	producer.Wait()
	time.Sleep(time.Second)
	stopConsuming()
	consumer.Wait()
	l.judge(c, mode, topic, group, started)
}

func (l *ledger) produce(c *t, ctx context.Context, topic string) {
	cl := c.client(
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(2*time.Millisecond),
		kgo.MaxBufferedRecords(2000),
		kgo.RecordDeliveryTimeout(2*time.Minute),
	)
	defer cl.Close()
	spoken := time.Now()
	for number := 0; ctx.Err() == nil; number++ {
		for p := range int32(loadPartitions) {
			value := fmt.Sprintf("%d:%d", p, number)
			cl.Produce(c.ctx, &kgo.Record{Topic: topic, Partition: p, Value: []byte(value)}, func(r *kgo.Record, err error) {
				l.Lock()
				defer l.Unlock()
				if err != nil {
					l.failed = append(l.failed, err.Error())
				} else {
					l.acked[place{r.Partition, r.Offset}] = value
				}
			})
		}
		if number%10 == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		if time.Since(spoken) > 500*time.Millisecond {
			spoken = time.Now()
			l.Lock()
			if len(l.committed) > 0 {
				say(fmt.Sprintf("acked %d", len(l.acked)))
			}
			l.Unlock()
		}
	}
	flushing, cancel := context.WithTimeout(c.ctx, 2*time.Minute)
	defer cancel()
	if err := cl.Flush(flushing); err != nil {
		l.failed = append(l.failed, err.Error())
	}
}

func (l *ledger) consume(c *t, ctx context.Context, topic, group string) {
	cl := c.client(
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.DisableAutoCommit(),
		kgo.SessionTimeout(30*time.Second),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	defer cl.Close()
	next := time.Now().Add(300 * time.Millisecond)
	for ctx.Err() == nil {
		polling, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		fetches := cl.PollFetches(polling)
		cancel()
		l.Lock()
		fetches.EachError(func(_ string, _ int32, err error) {
			if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) && !refused(err) {
				l.errors = append(l.errors, err.Error())
			}
		})
		fetches.EachRecord(func(r *kgo.Record) {
			at := place{r.Partition, r.Offset}
			if before, there := l.read[at]; there && before != string(r.Value) {
				l.changed = append(l.changed, fmt.Sprintf("%v: %s then %s", at, before, r.Value))
			}
			l.read[at] = string(r.Value)
		})
		l.Unlock()
		if time.Now().After(next) {
			l.commit(c, cl, topic)
			next = time.Now().Add(300 * time.Millisecond)
		}
	}
}

// commit commits all that was polled. This client hands a refused connection straight to its user
// where others retry, so that is retried here.
func (l *ledger) commit(c *t, cl *kgo.Client, topic string) {
	offsets := cl.UncommittedOffsets()[topic]
	if len(offsets) == 0 {
		return
	}
	l.Lock()
	for p, o := range offsets {
		l.tried[p] = max(l.tried[p], o.Offset)
	}
	l.Unlock()
	committing, cancel := context.WithTimeout(c.ctx, 120*time.Second)
	defer cancel()
	err := cl.CommitUncommittedOffsets(committing)
	for refused(err) && committing.Err() == nil {
		time.Sleep(100 * time.Millisecond)
		err = cl.CommitUncommittedOffsets(committing)
	}
	l.Lock()
	defer l.Unlock()
	if err != nil {
		l.errors = append(l.errors, "commit: "+err.Error())
		return
	}
	for p, o := range cl.CommittedOffsets()[topic] {
		l.committed[p] = o.Offset
	}
}

// refused tells of a connection that could not be made, as while the broker is down.
func refused(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial"
}

func first(problems []string) string {
	if len(problems) == 0 {
		return ""
	}
	return fmt.Sprintf("%d: %.400s", len(problems), strings.Join(problems[:min(3, len(problems))], " | "))
}

func (l *ledger) judge(c *t, mode, topic, group string, started time.Time) {
	log, committed, problem := readBack(topic, group)
	report(mode+"_read_back", started, problem)
	if problem != "" {
		return
	}
	var missing, twice, order, changed, lost []string
	for at, value := range l.acked {
		if log[at] != value {
			missing = append(missing, fmt.Sprintf("%v %s: %q", at, value, log[at]))
		}
	}
	seen := map[string]place{}
	for at, value := range log {
		if other, there := seen[value]; there {
			twice = append(twice, fmt.Sprintf("%s at %v and %v", value, at, other))
		}
		seen[value] = at
	}
	for p := range int32(loadPartitions) {
		for number, offset := 0, int64(0); ; number, offset = number+1, offset+1 {
			value, there := log[place{p, offset}]
			if !there {
				break
			}
			if value != strconv.Itoa(int(p))+":"+strconv.Itoa(number) {
				order = append(order, fmt.Sprintf("partition %d offset %d holds %s", p, offset, value))
				break
			}
		}
	}
	for at, value := range l.read {
		if log[at] != value {
			changed = append(changed, fmt.Sprintf("%v was %s, is %q", at, value, log[at]))
		}
	}
	if len(l.read) == 0 {
		changed = append(changed, "nothing was read")
	}
	for p, offset := range l.committed {
		if at := committed[p]; at < offset || at > l.tried[p] {
			lost = append(lost, fmt.Sprintf("partition %d: committed %d, tried %d, found %d", p, offset, l.tried[p], at))
		}
	}
	if len(l.committed) == 0 {
		lost = append(lost, "nothing was committed")
	}
	report(mode+"_nothing_acked_missing", started, first(missing))
	report(mode+"_nothing_twice", started, first(twice))
	report(mode+"_order_kept", started, first(order))
	report(mode+"_no_send_fails", started, first(l.failed))
	report(mode+"_what_was_read_stays", started, first(append(changed, l.changed...)))
	report(mode+"_committed_offsets_survive", started, first(lost))
	if mode == "sigterm" {
		report("sigterm_no_error_reaches_the_user", started, first(append(l.errors, l.failed...)))
	}
}

func readBack(topic, group string) (log map[place]string, committed map[int32]int64, problem string) {
	defer func() {
		if r := recover(); r != nil {
			problem = fmt.Sprint(r)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	defer cancel()
	c := &t{ctx}
	admin := c.admin()
	defer admin.Close()
	ends, err := admin.ListEndOffsets(ctx, topic)
	c.must(err)
	count := 0
	ends.Each(func(o kadm.ListedOffset) { count += int(o.Offset) })
	log, committed = map[place]string{}, map[int32]int64{}
	for _, r := range c.read(topic, count) {
		log[place{r.Partition, r.Offset}] = string(r.Value)
	}
	same(c, len(log), count, "records")
	found, err := admin.FetchOffsets(ctx, group)
	c.must(err)
	found.Each(func(o kadm.OffsetResponse) { committed[o.Partition] = o.At })
	return log, committed, ""
}
