//! What crashes leave, and all that they could.

use super::*;
use crate::volume::content::PAGE;
use std::collections::BTreeSet;

/// Pages of one letter each.
fn pages(letters: &str) -> String {
    letters.chars().map(|c| c.to_string().repeat(PAGE)).collect()
}

fn letters(image: &Image, path: &str) -> String {
    let Some(bytes) = image.bytes(path) else { return "-".into() };
    let letter = |page: &[u8]| {
        assert!(page.iter().all(|b| *b == page[0]), "a torn page");
        if page[0] == 0 {
            '0'
        } else {
            page[0] as char
        }
    };
    bytes.chunks(PAGE).map(letter).collect()
}

fn looks(images: &CrashImages, path: &str) -> Vec<String> {
    let mut all: Vec<String> = images.images.iter().map(|i| letters(i, path)).collect();
    all.sort();
    all
}

#[madsim::test]
async fn two_unsynced_pages_and_one_unsynced_name_survive_in_eight_ways() {
    let m = Model::new(whole_pages(), 1);
    let a = m.process(0);
    let file = settled(&a, "f", &pages("oo")).await;
    file.write_at(0, of(&pages("nn"))).await.unwrap();
    a.mkdir("d", D).await.unwrap();
    let all = m.crash_images(1000);
    assert_eq!((all.total, all.images.len()), (8, 8));
    let different: BTreeSet<_> = all.images.iter().map(|i| (letters(i, "f"), i.dirs.len())).collect();
    assert_eq!(different.len(), 8);
}

#[madsim::test]
async fn a_grown_file_is_as_long_as_its_last_page_or_has_zeros() {
    for kind in [whole_pages(), nfs(), coherent()] {
        let m = Model::new(kind, 1);
        let file = settled(&m.process(0), "f", &pages("o")).await;
        file.write_at(PAGE as u64, of(&pages("ab"))).await.unwrap();
        let all = m.crash_images(1000);
        assert_eq!(all.total, 6);
        assert_eq!(looks(&all, "f"), ["o", "o00", "o0b", "oa", "oa0", "oab"]);
        assert!(all.is_complete());
    }
}

#[madsim::test]
async fn what_has_no_name_has_no_pages() {
    let m = Model::new(whole_pages(), 1);
    let file = m.process(0).create_new("f", D).await.unwrap();
    file.write_at(0, of(&pages("ab"))).await.unwrap();
    let all = m.crash_images(1000);
    assert_eq!(looks(&all, "f"), ["", "-", "00", "0b", "a", "a0", "ab"]);
    assert_eq!(all.total, 7);
}

#[madsim::test]
async fn steps_of_a_directory_survive_as_a_prefix_and_a_move_on_both_sides_or_none() {
    let m = Model::new(whole_pages(), 1);
    let a = m.process(0);
    for dir in ["from", "to"] {
        a.mkdir(dir, D).await.unwrap();
    }
    settled(&a, "from/f", "x").await;
    a.sync_dir("", D).await.unwrap();
    a.mkdir("to/1", D).await.unwrap();
    a.rename("from/f", "to/f", D).await.unwrap();
    let all = m.crash_images(1000);
    let seen: BTreeSet<_> =
        all.images.iter().map(|i| (i.dirs.len(), i.files.keys().cloned().collect())).collect();
    let of = |dirs, file: &str| (dirs, vec![file.to_owned()]);
    assert_eq!(seen, BTreeSet::from([of(2, "from/f"), of(3, "from/f"), of(3, "to/f")]));
    assert_eq!(all.total, 3);
}

#[madsim::test]
async fn of_too_many_images_some_are_drawn_and_all_are_counted() {
    let m = Model::new(whole_pages(), 1);
    let file = settled(&m.process(0), "f", &pages(&"o".repeat(40))).await;
    file.write_at(0, of(&pages(&"n".repeat(40)))).await.unwrap();
    let some = m.crash_images(100);
    assert_eq!((some.total, some.images.len(), some.is_complete()), (1 << 40, 100, false));
    assert!(looks(&some, "f").windows(2).all(|w| w[0] != w[1]));
}

#[madsim::test]
async fn what_is_durable_leaves_one_image_that_a_new_volume_starts_from() {
    for kind in [whole_pages(), nfs(), coherent()] {
        let m = Model::new(kind.clone(), 1);
        let a = m.process(0);
        a.mkdir("d", D).await.unwrap();
        a.sync_dir("", D).await.unwrap();
        settled(&a, "d/f", "kept").await;
        let all = m.crash_images(1000);
        assert_eq!(all.images, [m.media()]);
        let again = Model::from_image(kind, 2, &all.images[0]);
        assert_eq!(again.media(), m.media());
        assert_eq!(read(&again.process(0), "d/f").await.unwrap(), "kept");
    }
}

/// Something unsynced of everything: grown, overwritten, cut, created, removed, moved.
async fn busy(m: &Model) -> Vec<Arc<dyn VolumeFile>> {
    let a = m.process(0);
    a.mkdir("d", D).await.unwrap();
    let over = settled(&a, "over", &pages("oo")).await;
    let grown = settled(&a, "grown", &pages("o")).await;
    let cut = settled(&a, "cut", &pages("oo")).await;
    settled(&a, "gone", &pages("o")).await;
    over.write_at(0, of(&pages("nn"))).await.unwrap();
    grown.write_at(PAGE as u64, of(&pages("nn"))).await.unwrap();
    cut.truncate(PAGE as u64).await.unwrap();
    a.unlink("gone").await.unwrap();
    a.rename("over", "d/over", D).await.unwrap();
    let new = a.create_new("new", D).await.unwrap();
    new.write_sync(0, of(&pages("n"))).await.unwrap();
    vec![over, grown, cut, new]
}

#[madsim::test]
async fn a_power_cut_leaves_one_of_the_crash_images() {
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let m = Model::new(whole_pages(), seed);
        let _open = busy(&m).await;
        let all = m.crash_images(100_000);
        assert!(all.is_complete(), "{}", all.total);
        m.power_cut(0);
        let left = m.media();
        assert!(all.images.contains(&left), "seed {seed}: {left:?}");
        assert_eq!(left, m.shown());
        let files = ["over", "d/over", "grown", "cut", "gone", "new"];
        seen.insert(files.map(|f| letters(&left, f)));
    }
    assert!(seen.len() > 50, "{}", seen.len());
}

/// What a page holds by its sectors, as runs of letters.
fn sectors(image: &Image, path: &str) -> String {
    let bytes = image.bytes(path).expect("the file is there");
    let mut seen: Vec<char> = bytes.chunks(512).map(|s| s[0] as char).collect();
    seen.dedup();
    seen.into_iter().collect()
}

#[madsim::test]
async fn one_page_of_a_file_is_torn_both_ways_among_the_images() {
    let m = Model::new(local(), 1);
    let file = settled(&m.process(0), "f", &pages("oo")).await;
    file.write_at(0, of(&pages("nn"))).await.unwrap();
    let mut torn_pages = BTreeSet::new();
    for _ in 0..20 {
        let all = m.crash_images(1000);
        assert_eq!((all.total, all.images.len()), (8, 8), "4 versions of one page, 2 of the other");
        let torn: Vec<String> = all.images.iter().map(|i| sectors(i, "f")).collect();
        for whole in ["o", "n", "on", "no"] {
            assert!(torn.iter().any(|t| t == whole), "{whole} is not among {torn:?}");
        }
        // With the other page as it was, and as it is.
        let ways: BTreeSet<&str> = torn.iter().map(|t| &**t).filter(|t| t.len() > 2).collect();
        let first = BTreeSet::from(["ono", "non"]);
        assert!(first.is_subset(&ways), "{torn:?}");
        let page = |i: &Image| i.bytes("f").unwrap()[..PAGE].iter().any(|b| *b != i.bytes("f").unwrap()[0]);
        torn_pages.insert(all.images.iter().any(page));
    }
    assert_eq!(torn_pages.len(), 2, "now the one, now the other");
}

#[madsim::test]
async fn what_differs_in_one_sector_is_not_torn() {
    let m = Model::new(local(), 1);
    let file = settled(&m.process(0), "f", &pages("o")).await;
    file.write_at(700, of("n")).await.unwrap();
    assert_eq!(m.crash_images(1000).total, 2);
}

#[madsim::test]
async fn a_page_that_was_being_written_may_be_torn_between_sectors() {
    let mut torn = 0;
    for seed in 0..64 {
        let m = Model::new(Options { torn: 0.5, ..local() }, seed);
        let file = settled(&m.process(0), "f", &pages("o")).await;
        file.write_at(0, of(&pages("n"))).await.unwrap();
        m.power_cut(0);
        let left = m.media().bytes("f").unwrap();
        let sectors: BTreeSet<&[u8]> = left.chunks(512).collect();
        assert!(sectors.iter().all(|s| s.iter().all(|b| *b == s[0])));
        torn += usize::from(sectors.len() > 1);
    }
    assert!(torn > 5, "{torn}");
}

/// The sync of four pages is under way when the power goes: any of them may have come, and none later but all.
#[madsim::test]
async fn what_was_under_way_is_torn_by_a_power_cut() {
    for kind in [whole_pages(), nfs(), coherent()] {
        let mut seen = BTreeSet::new();
        for seed in 0..100 {
            let m = Model::new(Options { sync: Span(20.0, 20.0), ..kind.clone() }, seed);
            let file = settled(&m.process(0), "f", &pages("oooo")).await;
            let write = tokio::spawn(async move { file.write_sync(0, of(&pages("nnnn"))).await });
            pass(1).await;
            m.power_cut(0);
            assert!(write.await.unwrap().is_err());
            pass(100).await;
            seen.insert(letters(&m.shown(), "f"));
        }
        let parts = seen.iter().filter(|s| s.contains('o') && s.contains('n')).count();
        let holes = seen.iter().filter(|s| s.contains("on")).count();
        assert!(parts > 4 && holes > 2 && seen.contains("nnnn"), "{seen:?}");
    }
}

#[madsim::test]
async fn a_strip_tells_where_each_page_is() {
    let m = Model::new(nfs(), 1);
    let (a, hold) = (m.process(1), Fault::HoldWriteback { scope: Scope::All });
    m.inject(hold);
    let file = settled(&a, "f", &pages("oo")).await;
    // One page and a far one: WRITE both, then COMMIT, which is held up.
    file.write_at(0, of("n")).await.unwrap();
    file.write_at(3 * PAGE as u64, of("n")).await.unwrap();
    m.inject(Fault::Slow { scope: Scope::All, ops: Ops::of(&[Op::Write]), by: Span(500.0, 500.0) });
    let syncing = tokio::spawn({
        let file = file.clone();
        async move { file.sync().await }
    });
    pass(100).await;
    let strip = m.strip("f").unwrap();
    let ahead: Vec<usize> = strip.pages.iter().map(|p| p.ahead.len()).collect();
    assert_eq!(ahead, [2, 0, 0, 2], "on the server and, for what the host knows, only there");
    assert_eq!((strip.media_len, strip.shown_len), (2 * PAGE as u64, 3 * PAGE as u64 + 1));
    syncing.await.unwrap().unwrap();
    assert!(m.strip("f").unwrap().pages.iter().all(|p| p.ahead.is_empty()));
    assert!(m.strip("no").is_none());
    let open = m.open_handles();
    assert_eq!((open.len(), open[0].path.as_str(), open[0].process), (1, "f", a.id()));
    a.kill();
    assert!(m.open_handles().is_empty());
}
