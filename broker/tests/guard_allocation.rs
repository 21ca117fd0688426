//! No request makes the broker reserve what it did not receive: every allocation made while requests are walked and
//! decoded is measured.

use bytes::{BufMut, BytesMut};
use highwater::api::dispatch::{probe, TABLE};
use rand::{Rng, SeedableRng};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Remembers the largest single allocation.
struct Measuring;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Measuring {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Measuring = Measuring;

/// One decoded element takes at most this, and one byte on the wire makes at most one element in two.
const PER_BYTE: usize = 64;

/// A valid header, then `body`.
fn frame(key: i16, version: i16, is_flexible: bool, body: &[u8]) -> BytesMut {
    let mut b = BytesMut::new();
    b.put_i16(key);
    b.put_i16(version);
    b.put_i32(1);
    b.put_i16(-1);
    if is_flexible {
        b.put_u8(0);
    }
    b.put_slice(body);
    b
}

#[test]
fn what_is_reserved_is_in_proportion_to_what_came() {
    let mut rng = rand::rngs::StdRng::seed_from_u64(7);
    let huge: [&[u8]; 4] =
        [&[0x7f; 4], &[0xff, 0xff, 0xff, 0xff, 0x0f], &[0, 0xff, 0xff, 0xff], &[0, 0, 0x40, 0]];
    let (mut tried, mut decoded) = (0, 0);
    for served in TABLE {
        for version in served.min..=served.max {
            let is_flexible = served.key.request_header_version(version) >= 2;
            for round in 0..400 {
                // Zeros decode far as empty strings and arrays; a huge count stands somewhere among them.
                let mut body = vec![0u8; rng.gen_range(0..200)];
                if round % 4 == 0 {
                    rng.fill(&mut body[..]);
                } else if !body.is_empty() {
                    let at = rng.gen_range(0..body.len());
                    let count = huge[rng.gen_range(0..huge.len())];
                    body.splice(at..at, count.iter().copied());
                }
                let frame = frame(served.key as i16, version, is_flexible, &body).freeze();
                let length = frame.len();
                LARGEST.store(0, Ordering::Relaxed);
                let taken = probe(frame).is_ok();
                let largest = LARGEST.load(Ordering::Relaxed);
                assert!(
                    largest <= 4096 + PER_BYTE * length,
                    "{:?} {version}: {largest} bytes reserved for a frame of {length}: {body:02x?}",
                    served.key
                );
                tried += 1;
                decoded += usize::from(taken);
            }
        }
    }
    assert!(decoded > tried / 20, "only {decoded} of {tried} decoded: the test would not see much");
}
