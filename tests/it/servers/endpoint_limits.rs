//! Tests of endpoint limits, shared by all nodes of a run, and of reports about silent endpoints.

use std::time::{Duration, Instant};

use searchmill_fixtures::openai_server::{Step, answer, status_retry_after};

use crate::harness::endpoint::{Bench, patient};

fn set(bench: &Bench, params: &str) {
    bench.replace("timeout_seconds: 2", &format!("timeout_seconds: 20, {params}"));
}

#[test]
fn nodes_share_the_places_at_an_endpoint() {
    let bench = Bench::new(&patient(12, Duration::from_millis(30)));
    bench.twice();
    bench.run(&["-j", "2", "--limit", "6"]).exit(0);
    assert!(bench.server.open().1 > 3, "without a limit, {} at once", bench.server.open().1);
    let bench = Bench::new(&patient(12, Duration::from_millis(30)));
    bench.twice();
    set(&bench, "limits: {concurrency: 3}");
    bench.run(&["-j", "2"]).exit(0);
    assert_eq!((bench.server.count(), bench.server.open().1), (24, 3));
}

#[test]
fn requests_a_minute_are_spread_over_all_nodes() {
    let bench = Bench::new(&patient(15, Duration::ZERO));
    bench.twice();
    // Ten per second, of which ten may start together.
    set(&bench, "limits: {requests_per_minute: 600}");
    bench.run(&["-j", "2"]).exit(0);
    let arrivals = bench.server.arrivals();
    assert_eq!(arrivals.len(), 30);
    let took = arrivals[29] - arrivals[0];
    assert!(took >= Duration::from_millis(1900), "30 requests arrived in {took:?}");
    let crowded = arrivals.windows(22).any(|window| window[21] - window[0] < Duration::from_secs(1));
    assert!(!crowded, "22 requests arrived within one second");
}

#[test]
fn tokens_a_minute_hold_calls_back() {
    let bench = Bench::new(&patient(8, Duration::ZERO));
    bench.replace("concurrency: 8", "concurrency: 1");
    // 110 tokens per call, 220 per second: two calls per second once the first second's worth is used.
    set(&bench, "limits: {tokens_per_minute: 13200}");
    let start = Instant::now();
    bench.run(&[]).exit(0);
    let arrivals = bench.server.arrivals();
    assert!(arrivals[7] - arrivals[0] >= Duration::from_millis(2300), "{:?}", start.elapsed());
}

#[test]
fn a_429_pauses_everybody_on_the_endpoint() {
    let mut script = patient(30, Duration::from_millis(20));
    script[3].1 = vec![status_retry_after(429, "1"), answer("Rome")];
    let bench = Bench::new(&script);
    set(&bench, "limits: {}");
    bench.replace("concurrency: 8", "concurrency: 4");
    bench.run(&[]).exit(0);
    let arrivals = bench.server.arrivals();
    assert_eq!(arrivals.len(), 31);
    let longest = arrivals.windows(2).map(|pair| pair[1] - pair[0]).max().expect("arrivals");
    assert!(longest >= Duration::from_millis(900), "a call was made {longest:?} after the 429");
}

#[test]
fn a_silent_endpoint_is_told_of_and_nothing_is_broken_off() {
    let slow = vec![Step::After(Duration::from_millis(1500), Box::new(answer("Rome")))];
    let bench = Bench::new(&[("Q".to_owned(), slow)]);
    set(&bench, "stall_seconds: 0.3");
    let told = bench.run(&[]).exit(0);
    let events = told.events();
    let silent: Vec<_> = events.iter().filter(|event| event["event"] == "endpoint_silent").collect();
    // At about 0.3 s, 0.6 s and 1.2 s.
    assert!((1..=4).contains(&silent.len()), "{silent:?}");
    assert_eq!(silent[0]["endpoint"], bench.server.base_url());
    assert_eq!(silent[0]["waiting"], 1);
    assert!(silent[0]["seconds"].as_f64().expect("seconds") >= 0.3);
    let quick = Bench::new(&patient(6, Duration::from_millis(100)));
    set(&quick, "stall_seconds: 0.5");
    assert!(!quick.run(&[]).exit(0).stdout.contains("endpoint_silent"));
    let told = bench.call(&["run", "pipeline.yaml", "--force=answers"]).exit(0);
    assert!(told.stderr.contains("has been silent for"), "{}", told.stderr);
}
