// The capstone's flat loop in C++, for scripts/bench_capstone.py: the same ring, book, quoter, clock,
// histograms and records, written as one would in C++, so that the comparison is of the two compilers.
//
// Usage: bench_capstone FEED_FILE FEED_CPU STRATEGY_CPU N_WARMUP
// Prints one line: messages in the window, the window's length in ns, and what it decided last and counted, so
// that it can be seen to have done the same work.

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

namespace {

constexpr int64_t kSlots = 4096;
constexpr int64_t kClockMask = 31;
constexpr int64_t kGapThresholdNs = 5000;
constexpr int kSubBits = 7;
constexpr int64_t kInstrument = 42;

int64_t clock_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

struct Message {
  int64_t seq, word1, word2;
};

struct Slot {
  Message message;
  int64_t t0_ns;
};

struct Ring {
  alignas(128) std::atomic<int64_t> head{0};
  alignas(128) int64_t tail_seen = 0;
  alignas(128) std::atomic<int64_t> tail{0};
  alignas(128) Slot slots[kSlots];

  bool has_room() {
    const int64_t h = head.load(std::memory_order_relaxed);
    if (h - tail_seen < kSlots) return true;
    tail_seen = tail.load(std::memory_order_acquire);
    return h - tail_seen < kSlots;
  }
  void push(const Message& message, int64_t t0_ns) {
    const int64_t h = head.load(std::memory_order_relaxed);
    slots[h & (kSlots - 1)] = {message, t0_ns};
    head.store(h + 1, std::memory_order_release);
  }
  int64_t available() const { return head.load(std::memory_order_acquire) - tail.load(std::memory_order_relaxed); }
  const Slot& peek(int64_t k) const { return slots[(tail.load(std::memory_order_relaxed) + k) & (kSlots - 1)]; }
  void release(int64_t n) { tail.store(tail.load(std::memory_order_relaxed) + n, std::memory_order_release); }
};

struct Histogram {
  std::vector<int64_t> counts = std::vector<int64_t>((64 - kSubBits) << kSubBits);
  int64_t count = 0, min = INT64_MAX, max = 0, sum = 0, negative = 0;

  void record(int64_t value) {
    if (value < 0) {
      ++negative;
      return;
    }
    int64_t index = value;
    if (value >= (1 << kSubBits)) {
      const int shift = 63 - __builtin_clzll(static_cast<uint64_t>(value)) - kSubBits;
      index = (static_cast<int64_t>(shift + 1) << kSubBits) + (value >> shift) - (1 << kSubBits);
    }
    ++counts[index];
    ++count;
    sum += value;
    min = std::min(min, value);
    max = std::max(max, value);
  }
};

struct Book {
  int64_t lowest, n_prices, best_bid, best_ask;
  std::vector<int64_t> bids, asks;

  Book(int64_t low, int64_t high)
      : lowest(low), n_prices(high - low + 1), best_bid(-1), best_ask(n_prices), bids(n_prices), asks(n_prices) {}

  void apply(int64_t side, int64_t price, int64_t quantity) {
    const int64_t index = price - lowest;
    if (side == 0) {
      bids[index] = quantity;
      if (quantity > 0) {
        best_bid = std::max(best_bid, index);
      } else if (index == best_bid) {
        while (best_bid >= 0 && bids[best_bid] == 0) --best_bid;
      }
    } else {
      asks[index] = quantity;
      if (quantity > 0) {
        best_ask = std::min(best_ask, index);
      } else if (index == best_ask) {
        while (best_ask < n_prices && asks[best_ask] == 0) ++best_ask;
      }
    }
  }
};

struct Gap {
  int64_t t_start_ns, t_end_ns, where;
};
struct Batch {
  int64_t t_popped_ns, t_decided_ns, first_message, n_messages, first_seq, last_seq;
};
struct Decision {
  int64_t seq;
  int32_t bid_price, bid_quantity, ask_price, ask_quantity, wanted_bid, wanted_ask;
};

Ring ring;
std::atomic<bool> feed_done{false}, feed_ready{false}, strategy_ready{false}, stop{false};
std::vector<Message> feed;
std::vector<int64_t> releases;
std::vector<Gap> feed_gaps, strategy_gaps;
std::vector<Batch> batches;
std::vector<Decision> decisions;
Histogram think, total;
int64_t t_window_ns, t_end_ns;
int64_t n_warmup, n_decided;

void pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (pthread_setaffinity_np(pthread_self(), sizeof set, &set) != 0) {
    std::perror("pthread_setaffinity_np");
    std::exit(1);
  }
}

void check_gap(std::vector<Gap>& gaps, int64_t& last_ns, int64_t now_ns, int64_t where) {
  if (now_ns - last_ns > kGapThresholdNs && gaps.size() < gaps.capacity()) gaps.push_back({last_ns, now_ns, where});
  last_ns = now_ns;
}

void run_feed(int cpu) {
  pin(cpu);
  feed_ready.store(true, std::memory_order_release);
  while (!strategy_ready.load(std::memory_order_acquire)) {
  }
  const int64_t n = static_cast<int64_t>(feed.size());
  const Message* const messages = feed.data();
  int64_t* const released = releases.data();
  int64_t last_ns = clock_ns();
  for (int64_t i = 0; i < n; ++i) {
    if (i == n_warmup) t_window_ns = clock_ns();
    if ((i & kClockMask) == 0 && stop.load(std::memory_order_acquire)) break;
    while (!ring.has_room()) check_gap(feed_gaps, last_ns, clock_ns(), 0);
    check_gap(feed_gaps, last_ns, clock_ns(), 0);
    released[i] = last_ns;
    ring.push(messages[i], last_ns);
  }
  feed_done.store(true, std::memory_order_release);
}

void run_strategy(int cpu, Book& book) {
  pin(cpu);
  strategy_ready.store(true, std::memory_order_release);
  while (!feed_ready.load(std::memory_order_acquire)) {
  }
  int64_t n_popped = 0, n_batches = 0, n_decisions = 0, expected_seq = -1, closing_seq = 0, skipped = 0;
  const int64_t inventory = 0;
  Batch* const batch_rows = batches.data();
  Decision* const decision_rows = decisions.data();
  bool live = true;
  int64_t last_ns = clock_ns();
  while (true) {
    const bool done = feed_done.load(std::memory_order_acquire);
    const int64_t n = ring.available();
    check_gap(strategy_gaps, last_ns, clock_ns(), 0);
    if (n == 0) {
      if (done) break;
      continue;
    }
    const int64_t t_popped_ns = last_ns;
    for (int64_t k = 0; k < n; ++k) {
      if ((k & kClockMask) == kClockMask) check_gap(strategy_gaps, last_ns, clock_ns(), 1);
      const Message& message = ring.peek(k).message;
      if (expected_seq < 0) expected_seq = message.seq;
      if (message.seq != expected_seq) {
        if (message.seq < expected_seq) {
          ++skipped;
          continue;
        }
        live = false;
      }
      expected_seq = message.seq + 1;
      if ((message.word1 & 0xFFFFFFFF) != kInstrument) {
        ++skipped;
        continue;
      }
      if (live) {
        const int64_t quantity = ((message.word1 >> 40) & 0xFF) == 2 ? 0 : message.word2 >> 32;
        book.apply((message.word1 >> 32) & 0xFF, message.word2 & 0xFFFFFFFF, quantity);
        closing_seq = message.seq;
      }
    }
    const bool has_bid = book.best_bid >= 0, has_ask = book.best_ask < book.n_prices;
    const int64_t bid = has_bid ? book.lowest + book.best_bid : -1;
    const int64_t ask = has_ask ? book.lowest + book.best_ask : -1;
    const int64_t skew = inventory / 100;
    const int64_t inside = ask - bid >= 3 ? 1 : 0;
    const bool quotes = has_bid && has_ask;
    const int64_t wanted_bid = quotes ? bid + inside - skew : -1, wanted_ask = quotes ? ask - inside - skew : -1;
    check_gap(strategy_gaps, last_ns, clock_ns(), 1);
    const int64_t t_decided_ns = last_ns;
    batch_rows[n_batches] = {t_popped_ns, t_decided_ns, n_popped, n, ring.peek(0).message.seq, ring.peek(n - 1).message.seq};
    decision_rows[n_decisions++] = {closing_seq,
                                static_cast<int32_t>(bid),
                                static_cast<int32_t>(has_bid ? book.bids[book.best_bid] : 0),
                                static_cast<int32_t>(ask),
                                static_cast<int32_t>(has_ask ? book.asks[book.best_ask] : 0),
                                static_cast<int32_t>(wanted_bid),
                                static_cast<int32_t>(wanted_ask)};
    if (n_popped >= n_warmup) think.record(t_decided_ns - t_popped_ns);
    int64_t sum_ns = 0, peak_ns = 0;
    for (int64_t k = std::max<int64_t>(0, n_warmup - n_popped); k < n; ++k) {
      if ((k & kClockMask) == kClockMask) check_gap(strategy_gaps, last_ns, clock_ns(), 1);
      const int64_t response_ns = t_decided_ns - ring.peek(k).t0_ns;
      total.record(response_ns);
      sum_ns += response_ns;
      peak_ns = std::max(peak_ns, response_ns);
    }
    if (peak_ns > INT64_MAX / 2 || sum_ns < 0) stop.store(true, std::memory_order_release);
    t_end_ns = t_decided_ns;
    ++n_batches;
    n_popped += n;
    ring.release(n);
  }
  n_decided = n_decisions;
  if (!live || skipped != 0) {
    std::fprintf(stderr, "the feed has gaps, duplicates or other instruments: nothing to compare\n");
    std::exit(1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s FEED_FILE FEED_CPU STRATEGY_CPU N_WARMUP\n", argv[0]);
    return 2;
  }
  std::ifstream file(argv[1], std::ios::binary | std::ios::ate);
  const int64_t n = (static_cast<int64_t>(file.tellg()) - 64) / static_cast<int64_t>(sizeof(Message));
  n_warmup = std::atoll(argv[4]);
  if (!file || n <= n_warmup) {
    std::fprintf(stderr, "cannot read %s\n", argv[1]);
    return 1;
  }
  feed.resize(n);
  file.seekg(64);
  file.read(reinterpret_cast<char*>(feed.data()), n * static_cast<int64_t>(sizeof(Message)));
  int64_t low = INT64_MAX, high = 0;
  for (const Message& message : feed) {
    low = std::min<int64_t>(low, message.word2 & 0xFFFFFFFF);
    high = std::max<int64_t>(high, message.word2 & 0xFFFFFFFF);
  }
  Book book(low, high);
  releases.resize(n);
  batches.resize(n);
  decisions.resize(n);
  feed_gaps.reserve(1 << 17);
  strategy_gaps.reserve(1 << 17);
  mlockall(MCL_CURRENT | MCL_FUTURE);
  std::thread strategy(run_strategy, std::atoi(argv[3]), std::ref(book));
  std::thread feeder(run_feed, std::atoi(argv[2]));
  feeder.join();
  strategy.join();
  const Decision& last = decisions[n_decided - 1];
  std::printf("%lld %lld %lld %d %d %d %d %d %d %lld\n", static_cast<long long>(n - n_warmup),
              static_cast<long long>(t_end_ns - t_window_ns), static_cast<long long>(last.seq), last.bid_price,
              last.bid_quantity, last.ask_price, last.ask_quantity, last.wanted_bid, last.wanted_ask,
              static_cast<long long>(total.count));
  return 0;
}
