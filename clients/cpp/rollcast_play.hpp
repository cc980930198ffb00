// Connects environments to rollcast: sends their spaces and observations, and receives actions. It needs C++20, gRPC's
// C++ library, and the code that protoc makes from the .proto files.
#pragma once

#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "rollcast/v1/environment.grpc.pb.h"

namespace rollcast_play {

namespace api = rollcast::v1;
static_assert(std::endian::native == std::endian::little, "observations and actions are sent little-endian");

// Your environment. A turn has an entry for each agent with news: an observation, a reward, or an end.
class Environment {
 public:
  virtual ~Environment() = default;
  // Begins an episode; the first one of a stream gets a seed. Some agents of the turn are RUNNING.
  virtual api::EnvironmentTurn reset(std::optional<std::uint64_t> seed) = 0;
  // Plays until agents need actions, or until the episode is over: then no agent of the turn is RUNNING.
  virtual api::EnvironmentTurn step(const api::EnvironmentActions& actions) = 0;
};

// The server's refusal of this client: the name of the gRPC code, and the reason.
class Refusal : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Plays environments until training ends. If the connection is lost, it reconnects and begins new episodes.
class Player {
 public:
  // environments: must outlive the player, and have the same spaces.
  // substeps: these spaces. An ordinary environment has one substep, with the key "0".
  // name: the client's name in logs; empty: the server chooses one.
  // episodes: the number of episodes to play; 0: until training ends.
  Player(std::vector<Environment*> environments, const std::vector<api::SubstepSpaces>& substeps,
         const std::string& name = "", int episodes = 0)
      : environments_(std::move(environments)), episodes_(episodes) {
    hello_.set_protocol(1);
    hello_.set_client(name);
    hello_.mutable_substeps()->Assign(substeps.begin(), substeps.end());
    hello_.set_n_envs(environments_.size());
  }

  // Plays; returns the reason of the end, as a sentence. Throws a Refusal if the server refuses this client.
  //
  // address: host and port of the server.
  // token: a token of the role `actor`, if the server has tokens.
  // root_certificates: PEM of the authority that signed the server's certificate; empty: no TLS.
  std::string play(const std::string& address, const std::string& token = "",
                   const std::string& root_certificates = "") {
    std::mt19937 random{std::random_device{}()};
    for (;;) {
      grpc::ClientContext context;
      if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
      auto stub = api::EnvironmentService::NewStub(channel(address, root_certificates));
      auto stream = stub->Play(&context);
      std::optional<std::string> farewell = play_stream(*stream);
      if (farewell) context.TryCancel();
      grpc::Status status = stream->Finish();
      std::string why = farewell ? *farewell : end_of(status);
      if (is_over_) return why;
      std::cerr << why << "; trying again within " << pause_s_ << " s" << std::endl;
      // so that clients do not reconnect all at once
      std::this_thread::sleep_for(pause_s_ * std::uniform_real_distribution(0.5, 1.0)(random) * std::chrono::seconds(1));
      pause_s_ = std::min(2 * pause_s_, kLongestPauseS);
    }
  }

 private:
  using Stream = grpc::ClientReaderWriter<api::PlayRequest, api::PlayResponse>;
  static constexpr double kFirstPauseS = 0.5, kLongestPauseS = 30;
  // Attempts to get a name that is taken, before the client has played.
  static constexpr int kNameTries = 6;

  // Returns the reason of a farewell; nothing if the stream has ended without one.
  std::optional<std::string> play_stream(Stream& stream) {
    api::PlayRequest hello;
    *hello.mutable_hello() = hello_;
    stream.Write(hello);  // if it fails, Read fails, too
    for (api::PlayResponse response; stream.Read(&response);) {
      if (response.has_farewell()) {
        is_over_ = response.farewell().training_ended();
        return response.farewell().reason();
      }
      if (is_over_) continue;  // actions that the server sent before it received our end
      api::Turns turns;
      response.has_welcome() ? begin(response.welcome(), turns) : step(response.actions(), turns);
      write(stream, turns, 0, turns.turns_size());
      if (episodes_ > 0 && n_ended_ >= episodes_) {
        is_over_ = true;
        stream.WritesDone();  // closes our side; the server then closes its own
      }
    }
    return std::nullopt;
  }

  // Writes the turns from `first` to before `last`, in messages that are small enough for the server.
  void write(Stream& stream, const api::Turns& turns, int first, int last) {
    api::PlayRequest request;
    for (int i = first; i < last; ++i) *request.mutable_turns()->add_turns() = turns.turns(i);
    if (request.ByteSizeLong() <= max_message_bytes_ || last - first == 1) {
      stream.Write(request);
      return;
    }
    const int half = first + (last - first) / 2;
    write(stream, turns, first, half);
    write(stream, turns, half, last);
  }

  void begin(const api::Welcome& welcome, api::Turns& turns) {
    hello_.set_client(welcome.client());  // it reconnects under this name
    max_message_bytes_ = welcome.max_message_bytes();
    for (int number = 0; number < welcome.seeds_size(); ++number)
      add(turns, number, environments_[number]->reset(welcome.seeds(number)));
  }

  void step(const api::Actions& actions, api::Turns& turns) {
    has_played_ = true;
    pause_s_ = kFirstPauseS;
    for (const auto& each : actions.environments()) {
      Environment& environment = *environments_.at(each.environment());
      bool is_running = false;
      for (const auto& agent : add(turns, each.environment(), environment.step(each)).agents())
        is_running |= agent.state() == api::AGENT_STATE_RUNNING;
      if (is_running) continue;
      ++n_ended_;
      add(turns, each.environment(), environment.reset(std::nullopt));
    }
  }

  static const api::EnvironmentTurn& add(api::Turns& turns, std::uint32_t number, api::EnvironmentTurn turn) {
    turn.set_environment(number);
    return *turns.add_turns() = std::move(turn);
  }

  // Returns how a stream without a farewell has ended; throws a Refusal if a new stream would not help.
  std::string end_of(const grpc::Status& status) {
    static const char* const kNames[] = {
        "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
        "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
        "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"};
    if (status.ok()) {
      is_over_ = true;
      return std::to_string(n_ended_) + " episodes played";
    }
    std::string why = kNames[status.error_code()] + (": " + status.error_message());
    // A lost connection of this process, or of the previous one, may still hold the name.
    const bool may_be_ours =
        status.error_code() == grpc::StatusCode::ALREADY_EXISTS && (++n_name_taken_ < kNameTries || has_played_);
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE && !may_be_ours) throw Refusal(why);
    return why;
  }

  static std::shared_ptr<grpc::Channel> channel(const std::string& address, const std::string& root_certificates) {
    grpc::ChannelArguments arguments;
    // Detects a lost server after 20 s. Without the last option, newer gRPC waits a minute for the answer to a ping.
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
    arguments.SetInt("grpc.http2.ping_timeout_ms", 10'000);
    grpc::SslCredentialsOptions tls;
    tls.pem_root_certs = root_certificates;
    auto credentials = root_certificates.empty() ? grpc::InsecureChannelCredentials() : grpc::SslCredentials(tls);
    return grpc::CreateCustomChannel(address, credentials, arguments);
  }

  std::vector<Environment*> environments_;
  api::Hello hello_;
  int episodes_, n_ended_ = 0, n_name_taken_ = 0;
  std::uint64_t max_message_bytes_ = 0;
  double pause_s_ = kFirstPauseS;
  bool has_played_ = false, is_over_ = false;
};

// The bytes of float32 values.
inline std::string floats(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

// The turn of an environment with one agent that sees a vector.
inline api::EnvironmentTurn single_turn(const std::vector<float>& observation, double reward = 0,
                                        api::AgentState state = api::AGENT_STATE_RUNNING) {
  api::EnvironmentTurn turn;
  api::AgentTurn& agent = *turn.add_agents();
  agent.set_state(state);
  agent.add_observation(floats(observation));
  agent.set_reward(reward);
  return turn;
}

// The space of a vector of float32 with these bounds.
inline api::Space box(const std::vector<float>& low, const std::vector<float>& high) {
  api::Space space;
  api::Box& box = *space.mutable_box();
  for (auto [bound, values] : {std::pair(box.mutable_low(), &low), std::pair(box.mutable_high(), &high)}) {
    bound->set_dtype(api::DATA_TYPE_FLOAT32);
    bound->add_shape(values->size());
    bound->set_data(floats(*values));
  }
  box.add_shape(low.size());
  return space;
}

// The space of the integers 0 to n - 1.
inline api::Space discrete(std::int64_t n) {
  api::Space space;
  space.mutable_discrete()->set_n(n);
  return space;
}

// The action in a discrete space.
inline std::int64_t integer(const api::AgentAction& action) {
  std::int64_t value = 0;
  if (action.action().size() != sizeof value) throw std::invalid_argument("the action is not one of a discrete space");
  std::memcpy(&value, action.action().data(), sizeof value);
  return value;
}

}  // namespace rollcast_play
