# frozen_string_literal: true

module Tracepoint
  module Agent
    # Methods that are hooked one by one: docs/agent/arming.md, "Targets". The rest of the
    # program runs unchanged.
    class Targets
      MOST = 1000
      ENABLE = TracePoint.instance_method(:enable)
      DISABLE = TracePoint.instance_method(:disable)
      ENABLED = TracePoint.instance_method(:enabled?)
      CHILDREN = RubyVM::InstructionSequence.instance_method(:each_child)
      INNER = /\A(block|rescue|ensure) /.freeze
      # Before 3.2, a second TracePoint on such a method replaces the first one, and Ruby
      # crashes when the first is disabled.
      WITH_BLOCKS = RUBY_VERSION >= "3.2"
      # Seconds between searches for methods that were added or removed.
      PERIODS = { of_classes: 0.5, of_names: 4.0 }.freeze
      CPU_SHARE = 0.01
      # Objects, about 2.6 ns each: Ruby searches for compiled code with each TracePoint.
      MOST_SEARCHED = 500_000_000
      TICK = 0.1
      # A wakeup ends a pause, but not a pause that starts at the same moment.
      LONGEST_PAUSE = 0.5
      LONGEST_REST = 60.0
      # Seconds in which a removed method may still return from calls.
      GRACE = 8.0

      # found: the method; iseqs: its own and nested ones, which it covers
      # by: the search that found it; gone_at: when the search no longer found it
      Target = Struct.new(:number, :tracepoint, :found, :iseqs, :by, :gone_at)

      @number = 0
      @current = nil

      class << self
        # Return a number that no earlier arming used, as far as 16 bits allow.
        def next_number
          @number = (@number % 0xffff) + 1
        end

        # Enable the targets of the current arming.
        def use(targets)
          @current = targets
          targets.enable
        end

        # Disable the targets, one by one.
        def stop
          leave&.stop
        end

        # Drop the targets when the program exits, without disabling them.
        def leave
          targets = @current
          @current = nil
          targets
        end
      end

      # near: names of methods similar to unmatched selectors
      # left_out: names of selected methods that Ruby cannot hook one by one
      attr_reader :near, :left_out

      # selectors: the argument `select` of arm
      def initialize(selectors)
        @selectors = selectors.map { |each| Search::Selector.new(each["owner"], each["kind"], each["name"]&.to_sym) }
        @all = {} # by number
        @targets = {}.compare_by_identity # by each iseq that a target covers
        @blocks = {}.compare_by_identity # by class, then by instructions and name
        @ending = [] # to be disabled as soon as possible
        @is_over = false
        @matched = {}.compare_by_identity # selectors, as in Search
        @without_code = {}.compare_by_identity
      end

      # Return the numbers of the selectors that match only methods without instructions.
      def without_code
        @selectors.each_index.select { |number| @without_code[@selectors[number]] && !@matched[@selectors[number]] }
      end

      # Return the numbers of the selectors that match no method.
      def unmatched
        @selectors.each_index.reject { |number| @without_code[@selectors[number]] || @matched[@selectors[number]] }
      end

      # Return whether any selector matches a method without instructions.
      def native
        @without_code.any?
      end

      # @raise [Refusal] if these methods have to be hooked all at once
      def check
        refuse("the program has not started, so the methods are not defined yet") if Hold.on?
        @slices = Slices.new
        @found = PERIODS.keys.to_h { |by| [by, search(by, @slices)] }
        count = @found.values.sum(&:size)
        refuse("more than #{MOST} methods match") if count > MOST
        slots = GC.stat(:heap_available_slots)
        refuse("under YJIT, Ruby would search #{slots} objects for each of #{count} methods") if
          Facts.jit == "yjit" && count * slots > MOST_SEARCHED
        blocks, others = @found.values.flatten(1).partition { |found| found.block? && !WITH_BLOCKS }
        @left_out = blocks.map { |found| Names.method_text(found.owner, found.name) }
        return if blocks.empty? || others.any?

        refuse("define_method made #{@left_out.first}, and Ruby #{RUBY_VERSION} allows one TracePoint per such method")
      end

      # @return [Integer] number of targets
      # @raise [ThreadError] if no thread can be started to search for later methods
      def enable
        @found.each { |by, list| take_in(list, by, @slices) }
        @near = Search.new(@selectors.values_at(*unmatched), @slices).near
        @found = @slices = nil
        watch
        @all.size
      end

      # Disable all targets. Native.stop has already ended the events.
      def stop
        @is_over = true
        slices = Slices.new
        @all.values.each do |target|
          end_target(target)
          slices.pass
        end
        @watcher&.wake
      end

      private

      def refuse(why)
        raise Refusal.new("targets", why)
      end

      # ---------------------------------------------------- added and removed methods

      def watch
        @due = PERIODS.transform_values { |period| Agent.now + period }
        @watcher = Watcher.new { |watcher| look_after(watcher) until @is_over && @ending.empty? }
      end

      def look_after(watcher)
        watcher.pause(seconds_left)
        PERIODS.each { |by, period| look_again(by, period) if !@is_over && Agent.now >= @due[by] }
        end_those_gone
      end

      # Return the time until the next search. A method that awaits a return is polled.
      def seconds_left
        return rest if @is_over
        return TICK if @ending.any? || @all.each_value.any?(&:gone_at)

        (@due.values.min - Agent.now).clamp(0, LONGEST_PAUSE)
      end

      # The remaining targets are evaluating, perhaps in a fiber that never resumes.
      def rest
        @rest = @rest ? [2 * @rest, LONGEST_REST].min : TICK
      end

      def look_again(by, period)
        slices = Slices.new
        cost = Slices.cpu { update(by, slices) }
        @due[by] = Agent.now + [period, cost / CPU_SHARE].max
      end

      def update(by, slices)
        found = search(by, slices)
        take_in(found, by, slices)
        iseqs = {}.compare_by_identity
        found.each do |each|
          iseqs[each.iseq] = true
          slices.pass
        end
        now = Agent.now
        @all.each_value do |target|
          next unless target.by == by

          target.gone_at = is_there?(target, iseqs, found) ? nil : target.gone_at || now
          slices.pass
        end
      end

      def is_there?(target, iseqs, found)
        return target.iseqs.any? { |iseq| iseqs.key?(iseq) } unless target.found.block?

        key = block_key(target.found)
        found.any? { |each| each.block? && each.owner.equal?(target.found.owner) && block_key(each) == key }
      end

      # Remove methods after their last open calls have returned, unless one is evaluating.
      def end_those_gone
        now = Agent.now
        @all.values.each do |target|
          next unless target.gone_at
          next if Native.target_calls(target.number).positive? && now - target.gone_at < GRACE

          remove(target)
        end
        @ending.reject! { |target| off?(target) }
      end

      # ------------------------------------------------------ enabling and disabling

      def search(by, slices)
        search = Search.new(@selectors, slices)
        by_iseq = {}.compare_by_identity
        blocks = {}.compare_by_identity
        search.__send__(by) do |found|
          if found.block?
            (blocks[found.owner] ||= {})[block_key(found)] ||= found
          else
            by_iseq[found.iseq] ||= found
          end
        end
        @matched.update(search.matched)
        @without_code.update(search.without_code)
        by_iseq.values + blocks.values.flat_map(&:values)
      end

      def block_key(found)
        [found.iseq.object_id, Search::ORIGINAL.bind_call(found.unbound)]
      end

      def take_in(list, by, slices)
        list.each do |found|
          found.block? ? take_in_block(found, by) : take_in_method(found, by)
          slices.pass
        end
      end

      def take_in_block(found, by)
        key = block_key(found)
        here = @blocks[found.owner] ||= {}
        return if here.key?(key)
        return Native.left_out unless WITH_BLOCKS && @all.size < MOST

        # Nested methods belong to both methods that share the block, but have one target.
        methods = within(found.iseq).reject { |iseq| INNER.match?(iseq.label) }
        return Native.left_out if methods.any? { |iseq| @targets[iseq]&.found&.block? }

        here[key] = cover(found, methods, by)
      end

      # A method within another is covered by the outer one's target.
      def take_in_method(found, by)
        return if @targets.key?(found.iseq)
        return Native.left_out if @all.size >= MOST

        cover(found, within(found.iseq), by)
      end

      def cover(found, iseqs, by)
        iseqs.filter_map { |iseq| @targets[iseq] }.uniq(&:number).each { |inner| remove(inner) }
        target = make(found, iseqs, by)
        iseqs.each { |iseq| @targets[iseq] = target }
        remove(target) unless on?(target)
        target
      end

      def within(iseq, list = [])
        list << iseq
        CHILDREN.bind_call(iseq) { |child| within(child, list) }
        list
      end

      def make(found, iseqs, by)
        number = Targets.next_number
        number = Targets.next_number while @all.key?(number)
        @all[number] = Target.new(number, Native.target(number), found, iseqs, by)
      end

      # Ruby rejects methods that are C functions.
      def on?(target)
        return false if @is_over

        ENABLE.bind_call(target.tracepoint, target: target.found.unbound)
        end_target(target) if @is_over # ended in the meantime
        true
      rescue ArgumentError
        false
      end

      def remove(target)
        @all.delete(target.number)
        target.iseqs.each { |iseq| @targets.delete(iseq) }
        @blocks[target.found.owner]&.delete_if { |_, each| each.equal?(target) }
        end_target(target)
      end

      def end_target(target)
        @ending << target unless off?(target)
      end

      # Disable a target unless it is running. Up to Ruby 3.1, disabling a TracePoint while
      # its hook runs crashes the program, and a hook that evaluates expressions lets other
      # threads run. A TracePoint that Ruby refused to enable must not be disabled: Ruby would
      # count one target too few, and silence the last one.
      def off?(target)
        return false if Native.target_inside(target.number).positive?

        DISABLE.bind_call(target.tracepoint) if ENABLED.bind_call(target.tracepoint)
        Native.target_over(target.number)
        true
      end
    end
  end
end
