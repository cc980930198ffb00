// CartPole, balanced by a policy that rollcast trains: build/cartpole ADDRESS NAME N_ENVS SEED EPISODES

#include <cmath>
#include <cstdlib>
#include <deque>
#include <limits>
#include <random>

#include "rollcast_play.hpp"

using namespace rollcast_play;

// A cart that balances a pole (Barto, Sutton and Anderson, 1983), as in gymnasium's CartPole-v1.
class CartPole : public Environment {
 public:
  static constexpr double kFallen = 12 * M_PI / 180;

  // seed: the seed of the first episodes; 0: the server's seed.
  explicit CartPole(std::uint64_t seed) : seed_(seed) {}

  static api::SubstepSpaces spaces() {
    constexpr float inf = std::numeric_limits<float>::infinity();
    api::SubstepSpaces spaces;
    spaces.set_key("0");
    *spaces.mutable_observation() = box({-4.8f, -inf, float(-2 * kFallen), -inf}, {4.8f, inf, float(2 * kFallen), inf});
    *spaces.mutable_action() = discrete(2);
    return spaces;
  }

  // Begins an episode close to the upright position.
  api::EnvironmentTurn reset(std::optional<std::uint64_t> seed) override {
    if (seed) random_.seed(seed_ != 0 ? seed_ : *seed);
    std::uniform_real_distribution<double> near(-0.05, 0.05);
    for (double* value : {&position_, &speed_, &angle_, &spin_}) *value = near(random_);
    n_steps_ = 0;
    return turn(0, api::AGENT_STATE_RUNNING);
  }

  // Pushes the cart to the left or to the right for 0.02 s.
  api::EnvironmentTurn step(const api::EnvironmentActions& actions) override {
    const double force = integer(actions.agents(0)) == 1 ? 10 : -10;
    const double sine = std::sin(angle_), cosine = std::cos(angle_);
    const double push = (force + 0.05 * spin_ * spin_ * sine) / 1.1;
    const double turned = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3 - 0.1 * cosine * cosine / 1.1));
    const double drive = push - 0.05 * turned * cosine / 1.1;
    position_ += 0.02 * speed_;
    speed_ += 0.02 * drive;
    angle_ += 0.02 * spin_;
    spin_ += 0.02 * turned;
    ++n_steps_;
    if (std::abs(position_) > 2.4 || std::abs(angle_) > kFallen) return turn(1, api::AGENT_STATE_TERMINATED);
    return turn(1, n_steps_ == 500 ? api::AGENT_STATE_INTERRUPTED : api::AGENT_STATE_RUNNING);
  }

 private:
  api::EnvironmentTurn turn(double reward, api::AgentState state) const {
    auto turn = single_turn({float(position_), float(speed_), float(angle_), float(spin_)}, reward, state);
    if (state != api::AGENT_STATE_RUNNING) {
      api::EpisodeValue& value = *turn.add_episode_values();
      value.set_name("final_position");
      value.set_value(position_);
    }
    return turn;
  }

  std::uint64_t seed_;
  std::mt19937_64 random_;
  double position_ = 0, speed_ = 0, angle_ = 0, spin_ = 0;
  int n_steps_ = 0;
};

// Plays CartPoles until training ends; seed 0: the server's seeds. The token is in ROLLCAST_TOKEN.
int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string given = argv[i];
    if (given.empty() || given[0] != '-') continue;
    const bool is_help = given == "-h" || given == "--help";
    if (!is_help) std::cerr << given << " is no argument\n";
    (is_help ? std::cout : std::cerr)
        << "usage: " << argv[0] << " [ADDRESS [NAME [N_ENVS [SEED [EPISODES]]]]]\n"
        << "Plays CartPoles until training ends, or for EPISODES. Seed 0: the server's seeds. "
        << "The token is in ROLLCAST_TOKEN.\n";
    return is_help ? 0 : 2;
  }
  auto argument = [&](int index, const char* otherwise) { return std::string(index < argc ? argv[index] : otherwise); };
  const char* token = std::getenv("ROLLCAST_TOKEN");
  const std::uint64_t seed = std::stoull(argument(4, "0"));
  std::deque<CartPole> poles;
  std::vector<Environment*> environments;
  for (int i = 0; i < std::stoi(argument(3, "1")); ++i)
    environments.push_back(&poles.emplace_back(seed != 0 ? seed + i : 0));
  Player player(environments, {CartPole::spaces()}, argument(2, ""), std::stoi(argument(5, "0")));
  try {
    std::cout << player.play(argument(1, "localhost:50052"), token != nullptr ? token : "") << std::endl;
  } catch (const Refusal& refusal) {
    std::cerr << refusal.what() << std::endl;
    return 1;
  }
}
