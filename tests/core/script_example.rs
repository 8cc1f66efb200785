//! Proves that the example of `lua/README.md` is a call of the script and its reply, byte by byte, and that the script sends
//! the commands that the page lists.

use support::{lua::LuaServer, prelude::*};

const README: &str = include_str!("../../lua/README.md");

/// The bytes of the blocks below the heading: those at the beginning of each line.
fn example() -> Vec<Vec<u8>> {
    let (_, example) = README.split_once("### One example").unwrap();
    let (example, _) = example.split_once("\n##").unwrap();
    let is_byte = |word: &&str| word.len() == 2 && u8::from_str_radix(word, 16).is_ok();
    let bytes = |line: &str| -> Vec<u8> {
        let words = line.split(' ').skip_while(|it| it.is_empty());
        let bytes = words.take_while(is_byte);
        bytes
            .map(|it| u8::from_str_radix(it, 16).unwrap())
            .collect()
    };
    let blocks = example.split("\n\n").filter(|it| it.starts_with("    "));
    blocks
        .map(|block| block.lines().flat_map(bytes).collect())
        .collect()
}

#[tokio::test]
async fn the_example_of_the_readme_is_what_is_sent_and_replied() {
    let (server, clock) = (LuaServer::new(), ManualClock::new(1_700_000_000_123));
    let store = server.store().clock(clock);
    let policy = Policy::parse("p", "10/1m@1s").unwrap();
    let check = |cost| Check::new([Charge::new(&policy, Key::new("user", "alice"), cost)]).unwrap();
    store.check(&check(1)).await.unwrap();
    let [call, admitted, denied] = &example()[..] else {
        panic!("three blocks of bytes");
    };
    for (cost, reply) in [(2_u64, admitted), (9, denied)] {
        store.check(&check(cost)).await.unwrap();
        let mut sent = call.clone();
        sent[0] |= 128; // the time is given
        sent[6] = cost.to_le_bytes()[0];
        assert_eq!(server.last_call()[0], sent, "a cost of {cost}");
        assert_eq!(&server.last_reply().unwrap(), reply, "a cost of {cost}");
    }
}

/// The commands of each block below the heading: a line holds one, and an explanation behind two spaces.
fn traces() -> Vec<Vec<&'static str>> {
    let (_, traces) = README.split_once("### Two traces").unwrap();
    let (traces, _) = traces.split_once("\n## ").unwrap();
    let blocks = traces.split("\n\n").filter(|it| it.starts_with("    "));
    let command = |line: &'static str| line.trim_start().split("  ").next().unwrap();
    blocks
        .map(|block| block.lines().map(command).collect())
        .collect()
}

#[tokio::test]
async fn the_script_sends_the_commands_that_the_readme_lists() {
    let (server, clock) = (LuaServer::new(), ManualClock::new(1_700_000_000_123));
    let store = server.store().clock(clock);
    let policy = |name, limit| Policy::parse(name, &format!("{limit}/1m@1s")).unwrap();
    let (user, team) = (policy("user", 10), policy("team", 4));
    let check = |cost| {
        let charge = |policy, name| Charge::new(policy, Key::new("name", name), cost);
        Check::new([charge(&user, "alice"), charge(&team, "blue")]).unwrap()
    };
    let admitted = store.check(&check(3)).await.unwrap();
    let [denial, settlement] = &traces()[..] else {
        panic!("two blocks of commands");
    };
    assert!(!store.check(&check(2)).await.unwrap().is_allowed());
    assert_eq!(&server.last_commands(), denial);
    let settled = Settlement::new(admitted.usage(), |_| 1).unwrap();
    store.settle(&settled).await.unwrap();
    assert_eq!(&server.last_commands(), settlement);
}
