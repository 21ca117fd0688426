package main

import (
	"crypto/rand"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func noise(size int) []byte {
	value := make([]byte, size)
	_, _ = rand.Read(value)
	return value
}

func codecCheck(name string, codec kgo.CompressionCodec) check {
	return check{name: "codec_" + name, body: func(c *t) {
		topic, sent := c.create("franz-codec-"+name, 1), numbered(300, 900)
		c.produceValues(topic, sent, kgo.ProducerBatchCompression(codec))
		got := c.read(topic, 300)
		same(c, values(got), sent, "values")
		wanted := map[string]uint8{"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}[name]
		same(c, got[0].Attrs.CompressionType(), wanted, "codec of the stored batch")
	}}
}

var recordChecks = []check{
	codecCheck("none", kgo.NoCompression()),
	codecCheck("gzip", kgo.GzipCompression()),
	codecCheck("snappy", kgo.SnappyCompression()),
	codecCheck("lz4", kgo.Lz4Compression()),
	codecCheck("zstd", kgo.ZstdCompression()),
	{name: "keys_headers_nulls_timestamps", body: func(c *t) {
		topic, when := c.create("franz-fields", 1), time.UnixMilli(1_600_000_000_000)
		sent := []*kgo.Record{
			{Key: []byte("k"), Value: []byte("v"), Headers: []kgo.RecordHeader{{Key: "h1", Value: []byte("a")}, {Key: "h1", Value: nil}, {Key: "h2", Value: []byte{}}}},
			{Value: []byte("keyless")},
			{Key: []byte("tombstone")},
			{Key: []byte{}, Value: []byte{}},
		}
		for i, r := range sent {
			r.Topic, r.Timestamp = topic, when.Add(time.Duration(i)*time.Millisecond)
		}
		cl := c.client()
		defer cl.Close()
		c.produce(cl, sent...)
		for i, got := range c.read(topic, 4) {
			want := sent[i]
			same(c, fmt.Sprintf("%#v %#v %v", got.Key, got.Value, got.Timestamp.UnixMilli()),
				fmt.Sprintf("%#v %#v %v", want.Key, want.Value, want.Timestamp.UnixMilli()), "fields")
			same(c, fmt.Sprintf("%#v", got.Headers), fmt.Sprintf("%#v", want.Headers), "headers")
		}
	}},
	{name: "log_append_time", body: func(c *t) {
		topic := c.create("franz-append-time", 1, "message.timestamp.type", "LogAppendTime")
		before := time.Now()
		cl := c.client()
		defer cl.Close()
		c.produce(cl, &kgo.Record{Topic: topic, Value: []byte("x"), Timestamp: time.UnixMilli(1000)})
		got := c.read(topic, 1)[0]
		same(c, got.Attrs.TimestampType(), 1, "timestamp type")
		if got.Timestamp.Before(before.Add(-time.Second)) || got.Timestamp.After(time.Now().Add(time.Second)) {
			c.fail("timestamp %v", got.Timestamp)
		}
	}},
	{name: "large_message", body: func(c *t) {
		topic := c.create("franz-large", 1, "max.message.bytes", "6000000")
		value := noise(5_000_000)
		cl := c.client(kgo.ProducerBatchMaxBytes(5_500_000))
		defer cl.Close()
		c.produce(cl, &kgo.Record{Topic: topic, Value: value}, &kgo.Record{Topic: topic, Value: []byte("small")})
		got := c.read(topic, 2)
		same(c, slices.Equal(got[0].Value, value), true, "the large value is the same")
	}},
	{name: "too_large_refused", body: func(c *t) {
		topic := c.create("franz-too-large", 1, "max.message.bytes", "1000")
		cl := c.client()
		defer cl.Close()
		err := cl.ProduceSync(c.ctx, &kgo.Record{Topic: topic, Value: noise(5000)}).FirstErr()
		c.wantErr(err, kerr.MessageTooLarge)
		c.produce(cl, &kgo.Record{Topic: topic, Value: []byte("fits")})
		same(c, values(c.read(topic, 1)), []string{"fits"}, "values")
	}},
	{name: "compacted_topic_needs_keys", body: func(c *t) {
		topic := c.create("franz-compact", 1, "cleanup.policy", "compact")
		cl := c.client()
		defer cl.Close()
		err := cl.ProduceSync(c.ctx, &kgo.Record{Topic: topic, Value: []byte("keyless")}).FirstErr()
		c.wantErr(err, kerr.InvalidRecord)
	}},
	{name: "idempotent_producer", body: func(c *t) {
		topic, sent := c.create("franz-idempotent", 3), numbered(3000, 50)
		c.produceValues(topic, sent, kgo.ProducerLinger(time.Millisecond))
		same(c, sorted(values(c.read(topic, 3000))), sorted(sent), "values, each once")
	}},
	{name: "acks_zero_and_one", body: func(c *t) {
		topic := c.create("franz-acks", 1)
		c.produceValues(topic, []string{"one"}, kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite())
		c.produceValues(topic, []string{"zero"}, kgo.RequiredAcks(kgo.NoAck()), kgo.DisableIdempotentWrite())
		admin := c.admin()
		defer admin.Close()
		c.until(10*time.Second, "both are there", func() bool {
			found, err := admin.ListEndOffsets(c.ctx, topic)
			end, _ := found.Lookup(topic, 0)
			return err == nil && end.Offset == 2
		})
		same(c, values(c.read(topic, 2)), []string{"one", "zero"}, "values")
	}},
	{name: "offsets_start_end", body: func(c *t) {
		topic := c.create("franz-watermarks", 1)
		c.produceValues(topic, numbered(7, 10))
		admin := c.admin()
		defer admin.Close()
		starts, err := admin.ListStartOffsets(c.ctx, topic)
		c.must(err)
		ends, err := admin.ListEndOffsets(c.ctx, topic)
		c.must(err)
		start, _ := starts.Lookup(topic, 0)
		end, _ := ends.Lookup(topic, 0)
		same(c, []int64{start.Offset, end.Offset}, []int64{0, 7}, "start and end")
	}},
	{name: "offsets_for_times", body: func(c *t) {
		topic := c.create("franz-times", 1)
		cl := c.client()
		defer cl.Close()
		for _, ts := range []int64{2000, 4000, 9000, 8000} {
			c.produce(cl, &kgo.Record{Topic: topic, Value: []byte("x"), Timestamp: time.UnixMilli(ts)})
		}
		admin := c.admin()
		defer admin.Close()
		for ts, wanted := range map[int64][2]int64{1: {0, 2000}, 3000: {1, 4000}, 8500: {2, 9000}} {
			found, err := admin.ListOffsetsAfterMilli(c.ctx, ts, topic)
			c.must(err)
			o, _ := found.Lookup(topic, 0)
			same(c, [2]int64{o.Offset, o.Timestamp}, wanted, fmt.Sprintf("offset and timestamp after %d", ts))
		}
		found, err := admin.ListMaxTimestampOffsets(c.ctx, topic)
		c.must(err)
		o, _ := found.Lookup(topic, 0)
		same(c, [2]int64{o.Offset, o.Timestamp}, [2]int64{2, 9000}, "offset of the largest timestamp")
	}},
	{name: "offset_for_leader_epoch", body: func(c *t) {
		topic := c.create("franz-epoch", 1)
		c.produceValues(topic, numbered(5, 10))
		admin := c.admin()
		defer admin.Close()
		found, err := admin.ListEndOffsets(c.ctx, topic)
		c.must(err)
		end, _ := found.Lookup(topic, 0)
		if end.LeaderEpoch < 0 {
			c.fail("ListOffsets gives no leader epoch")
		}
		var request kadm.OffsetForLeaderEpochRequest
		request.Add(topic, 0, end.LeaderEpoch)
		answer, err := admin.OffsetForLeaderEpoch(c.ctx, request)
		c.must(err)
		same(c, answer[topic][0].EndOffset, 5, "end offset")
	}},
	{name: "fetch_from_the_middle_of_a_batch", body: func(c *t) {
		topic := c.create("franz-middle", 1)
		c.produceValues(topic, numbered(100, 20))
		cl := c.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(37)}}))
		defer cl.Close()
		fetches := cl.PollFetches(c.ctx)
		c.must(fetches.Err())
		same(c, fetches.Records()[0].Offset, 37, "first offset")
	}},
	{name: "offset_out_of_range_resets", body: func(c *t) {
		topic := c.create("franz-range", 1)
		c.produceValues(topic, numbered(3, 10))
		at := map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(1000)}}
		cl := c.client(kgo.ConsumePartitions(at), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		defer cl.Close()
		fetches := cl.PollFetches(c.ctx)
		c.must(fetches.Err())
		same(c, fetches.Records()[0].Offset, 0, "first offset")
	}},
	{name: "delete_records", body: func(c *t) {
		topic := c.create("franz-delete-records", 1)
		c.produceValues(topic, numbered(10, 10))
		admin := c.admin()
		defer admin.Close()
		cut := func(at int64) (int64, error) {
			offsets := kadm.Offsets{}
			offsets.AddOffset(topic, 0, at, -1)
			answer, err := admin.DeleteRecords(c.ctx, offsets)
			c.must(err)
			found, _ := answer.Lookup(topic, 0)
			return found.LowWatermark, found.Err
		}
		for _, step := range [][2]int64{{4, 4}, {2, 4}, {-1, 10}} {
			low, err := cut(step[0])
			c.must(err)
			same(c, low, step[1], fmt.Sprintf("low watermark after deleting up to %d", step[0]))
		}
		_, err := cut(11)
		c.wantErr(err, kerr.OffsetOutOfRange)
		c.produceValues(topic, []string{"after"})
		same(c, c.read(topic, 1)[0].Offset, 10, "offset of the next record")
	}},
	{name: "long_poll_latency", body: func(c *t) {
		topic := c.create("franz-latency", 1)
		c.produceValues(topic, []string{"warm"})
		at := map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}
		cl := c.client(kgo.ConsumePartitions(at), kgo.FetchMaxWait(5*time.Second))
		defer cl.Close()
		c.must(cl.PollFetches(c.ctx).Err())
		var took []time.Duration
		for range 5 {
			time.Sleep(400 * time.Millisecond)
			started := time.Now()
			c.produce(cl, &kgo.Record{Topic: topic, Value: []byte("now")})
			c.must(cl.PollFetches(c.ctx).Err())
			took = append(took, time.Since(started))
		}
		slices.Sort(took)
		if took[2] > 500*time.Millisecond {
			c.fail("until a waiting consumer had it: %v", took)
		}
	}},
}
