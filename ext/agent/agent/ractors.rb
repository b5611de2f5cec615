# frozen_string_literal: true

module Tracepoint
  module Agent
    # The hooks of other Ractors (hook/ractors.h), and what Ractors do to those of the
    # main one. Neither of that is ours: TracePoint, and
    # ObjectSpace.trace_object_allocations, have it too.
    #
    # Ruby 3.0 to 3.2 crash where one begins while there is a hook on collections or new
    # objects: its first objects are made before it has a frame. So there such hooks go
    # before a Ractor is made, and are not put where there are some.
    #
    # Where one is collected (ractor_free, vm_trace.c: rb_hook_list_free), Ruby forgets
    # which events the other ones' hooks are on. They are silent until a hook is put
    # there or taken away.
    module Ractors
      FRAGILE = RUBY_VERSION >= "3.0" && RUBY_VERSION < "3.3"
      PERIOD = RUBY_VERSION >= "3.0" ? 0.05 : nil
      JOINED = RUBY_VERSION >= "3.1" && RUBY_VERSION < "3.5"
      TELLS = RUBY_VERSION >= "3.3" # of a thread, before it makes it
      CROWD = 1024
      @watch = nil
      @births = nil
      @crowd = CROWD

      module_function

      # From here on such hooks go when a Ractor is made, until `unwatch`.
      #
      # @return whether they can be had at all
      def watch
        return true unless FRAGILE

        unwatch
        Native.inner(true)
        @watch = TracePoint.new(:call) { Native.inner(false) }
        @watch.enable(target: Ractor.method(:new))
        Native.inner(false) if Facts.ractors > 1
        Facts.ractors == 1
      end

      # What is armed sees those that there are, and those that are made: until `unwatch`.
      #
      # @return how many are not seen
      def join
        return Facts.ractors - 1 unless JOINED

        census # before another Ractor can be the one that makes the first one known
        see_births
        census
      end

      # Of those that have ended also: until they are collected they have our entries.
      def census
        Native.census
        any = Facts.ractors > 1 || Native.joined.positive?
        unseen = Native.join(::Ractor.current, any ? ObjectSpace.each_object(::Ractor).to_a : [])
        @crowd = Native.joined * 2 + CROWD
        unseen
      end

      def see_births
        @births ||= Native.births(TELLS)
        @births.enable(target: ::Ractor.method(:new)) if @births && !@births.enabled?
      end

      # Done every PERIOD s while something is armed: hooks that were silent are heard
      # again, and that they were is told. `beat` is a call and makes an object.
      def renew
        before = Native.beats
        beat
        Native.renew(before)
        census if JOINED && Native.joined > @crowd
      end

      def beat
        Object.new
      end

      def unwatch
        @watch&.disable
        @watch = nil
        return if Native.reason

        Native.no_births
        # Where another Ractor may be in it, it stays until next time, and does nothing.
        return unless @births && Facts.ractors == 1

        @births.disable
        @births = nil
      end
    end
  end
end
